-- KEYS: leases by when they end. ARGV: capacity, microseconds that a lease lasts, the lease.
-- Reply: admitted, remaining.
local capacity, lasts = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local held = redis.call('ZCARD', KEYS[1])
if held >= capacity then
  return { 0, 0 }
end
redis.call('ZADD', KEYS[1], now + lasts, ARGV[3])
redis.call('PEXPIRE', KEYS[1], math.ceil(lasts / 1000))
return { 1, capacity - held - 1 }
