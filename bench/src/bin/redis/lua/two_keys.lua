-- KEYS: tokens, and when they were counted. ARGV: tokens per second, capacity, the client's time in seconds, cost.
local per_second, capacity = tonumber(ARGV[1]), tonumber(ARGV[2])
local time, cost = tonumber(ARGV[3]), tonumber(ARGV[4])
local tokens = tonumber(redis.call('GET', KEYS[1]) or capacity)
local counted = tonumber(redis.call('GET', KEYS[2]) or 0)
if time > counted then
  tokens = math.min(capacity, tokens + (time - counted) * per_second)
end
local admitted = 0
if tokens >= cost then
  tokens, admitted = tokens - cost, 1
end
local kept_for = math.ceil(2 * capacity / per_second)
redis.call('SETEX', KEYS[1], kept_for, tokens)
redis.call('SETEX', KEYS[2], kept_for, time)
return { admitted, tokens }
