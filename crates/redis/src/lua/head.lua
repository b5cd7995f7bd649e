-- Decides groups of charges, each group all or nothing. Times are microseconds.
--
-- ARGV[1]: now (-1: Redis's own time), then per group the number of its items and the items; see wire.rs.
-- Reply: now, then five integers per item: allowed (2: by a lease that was held before), remaining, retry after (-1: never), reset after, delay.
--
-- One screen of branches, not functions: a closure per call would cost as much as the decision.
local call, unpack, pack, sub = redis.call, struct.unpack, struct.pack, string.sub
local floor, ceil = math.floor, math.ceil
local arg = ARGV[1]
local now, at = unpack('<d', arg)
local spare = 0
if now < 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  -- A test's clock and the server's differ: nothing may expire while the test runs.
  spare = 600000
end

-- A step back of up to this is the clock's and is waited out; after a longer one states go on from the new time.
local BACK = 60000000

local rates, changed_rates, any_rates = {}, {}, false
local logs = {}
local reply, last = { now }, 1

local size = #arg
while at <= size do
  local count
  count, at = unpack('<I2', arg, at)
  local first, all = last, true
  -- Per item: what to do if the whole group passes, and the answer if it does.
  local act, key, value, remaining_after, reset_after_it = {}, {}, {}, {}, {}

  for item = 1, count do
    local head = sub(arg, at, at + 32)
    local id, kind, p1, p2, p3, op, k, cost, taken, since, extra, lease
    id, kind, p1, p2, p3, op, k, cost, taken, since, extra, lease, at =
      unpack('<c8BdddBI2ddddc16', arg, at)
    if taken < 0 then taken = now end
    -- The same key may have come with several messages, each time under another number.
    local name = KEYS[k]
    local yes, remaining, retry, reset, delay = true, 0, 0, 0, 0
    -- What is to be stored, and the answer then.
    local put, after, reset_then = nil, 0, 0
    -- Whether the lease was held before, so that nothing was taken.
    local kept = false

    if kind <= 4 then
      -- Rates: records of 65 bytes in the subject's one string: id, kind, three parameters; a, b, written, idle from.
      local s = rates[name]
      if not s then
        s = call('GET', name) or ''
        if #s % 65 ~= 0 then s = '' end
        rates[name] = s
      end
      local a, b, t, from = 0, -1, 0, 1
      local length = #s
      while from <= length and sub(s, from, from + 32) ~= head do from = from + 65 end
      local moved = false
      if from <= length then
        a, b, t = unpack('<ddd', s, from + 33)
      elseif length > 0 then
        from = 1
        while from <= length and sub(s, from, from + 7) ~= id do from = from + 65 end
        if from <= length then
          -- Charged under other parameters.
          moved = true
--@convert
        end
      end
      local n = now
      if t > n then
        if t - n <= BACK then
          n = t
        else
          if b >= 0 then b = b - (t - n) end
          t, moved = n, true
        end
      end
      if moved then
        -- Converted or set back: that has to be kept even if the call is refused. It is idle after the longest that such
        -- a limit can take, or sooner.
        local longest = kind == 0 and ceil(p1 * p2 / p3) or kind == 4 and ceil(p1 / p2) * p3 or 2 * p2
        s = sub(s, 1, from - 1) .. head .. pack('<dddd', a, b, t, n + longest) .. sub(s, from + 65)
        rates[name], changed_rates[name], any_rates = s, true, true
      end
      -- The new state; what was there stays unless a branch says otherwise.
      local na, nb, write = a, b, false
      if op == 6 then
        -- Forget the key under this family, whatever the parameters.
        if from <= length then
          rates[name] = sub(s, 1, from - 1) .. sub(s, from + 65)
          changed_rates[name], any_rates = true, true
        end
      elseif kind == 0 then
--@bucket
      elseif kind <= 2 then
--@fixed_window
      elseif kind == 3 then
--@sliding_window
      else
--@interval_bucket
      end
      if write then
        put = head .. pack('<dddd', na, nb, n, n + reset_then)
      end
      if put then act[item], key[item], value[item] = 1, name, put end
    elseif kind == 5 or kind == 6 then
--@log
    else
--@concurrency
    end

    -- Only charges can refuse each other.
    if not yes and op < 2 then all = false end
    remaining_after[item], reset_after_it[item] = after, reset_then
    reply[last + 1], reply[last + 2], reply[last + 3] = yes and (kept and 2 or 1) or 0, remaining, retry
    reply[last + 4], reply[last + 5] = reset, delay
    last = last + 5
  end

  for item = 1, count do
    local what = act[item]
    -- 4: a refused call that counts all the same.
    if what and (all or what == 4) then
      local name, v = key[item], value[item]
      local place = first + 5 * (item - 1)
      if what == 1 then
        local s, id = rates[name], sub(v, 1, 8)
        local from, length = 1, #s
        while from <= length and sub(s, from, from + 7) ~= id do from = from + 65 end
        if length <= 65 and from == 1 then
          rates[name] = v
        else
          rates[name] = sub(s, 1, from - 1) .. v .. sub(s, from + 65)
        end
        changed_rates[name], any_rates = true, true
      elseif what == 3 then
--@concurrency_commit
      else
        logs[name] = v
        local until_idle = reset_after_it[item]
        if until_idle > 0 then
          call('SET', name, v, 'PX', ceil(until_idle / 1000) + spare)
        else
          logs[name] = ''
          call('DEL', name)
        end
      end
      reply[place + 2], reply[place + 4] = remaining_after[item], reset_after_it[item]
    end
  end
end

if any_rates then
  for name in pairs(changed_rates) do
    local s = rates[name]
    local idle = now
    for from = 1, #s, 65 do
      local e = unpack('<d', s, from + 57)
      if e > idle then idle = e end
    end
    if s == '' then
      call('DEL', name)
    else
      local ttl = ceil((idle - now) / 1000)
      if ttl < 1 then ttl = 1 end
      call('SET', name, s, 'PX', ttl + spare)
    end
  end
end
return reply
