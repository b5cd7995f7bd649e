-- KEYS: when the bucket is full again. ARGV: microseconds per token, capacity, cost.
-- Reply: admitted, remaining, retry after, reset after.
local per_token, capacity, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full = tonumber(redis.call('GET', KEYS[1]) or now)
if full < now then full = now end
local full_then = full + cost * per_token
local room = now + capacity * per_token - full_then
if room < 0 then
  return { 0, math.floor((room + cost * per_token) / per_token), -room, full - now }
end
redis.call('SET', KEYS[1], full_then, 'PX', math.ceil((full_then - now) / 1000))
return { 1, math.floor(room / per_token), 0, full_then - now }
