-- Decides groups of charges, each group all or nothing. Times are microseconds.
--
-- ARGV[1]: now (-1: Redis's own time), then per group the number of its items and the items; see wire.rs.
-- Reply: now, then per item: allowed (2: by a lease that was held before), remaining, retry after (-1: never), reset
-- after, delay; all as doubles in one string.
--
-- Written for speed. One screen of branches, not functions: a closure per call would cost as much as the decision.
-- `x - x % 1` rounds down and `x + -x % 1` up, at a tenth of the cost of a call. Scores are written by `%d`, and hardly
-- ever read: Redis takes its time to write a double.
local call, pcall, unpack, pack, sub, find, format =
  redis.call, redis.pcall, struct.unpack, struct.pack, string.sub, string.find, string.format
local floor, ceil = math.floor, math.ceil
local KEYS, arg = KEYS, ARGV[1]
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

-- Strings by their keys, and those that have to be written: most often there is but one. Logs tell how long they last.
local strings, changed, others_changed, lasts = {}, nil, nil, nil
-- Leases that this call may yet set back because the clock went back.
local steps
local size = #arg
-- The replies to all items; the one to a single item is returned as it is.
local replies, only, last = size > 94 and { pack('<d', now), '', '', '' }, nil, 1

while at <= size do
  local count
  count, at = unpack('<I2', arg, at)
  -- Everything is done as if no item refused. If one does, strings are put back as they were, sets have not been touched
  -- yet, and all items are looked at once more, dry, for the answers.
  -- Who has refused stays so: items of one state may only refuse together.
  local dry, start, first, refused, refused_retry = false, at, last, 0, 0
  local mine, before, others_before
  local set, set_other, sweep, score, units, lease, lease_lasts, more_leases

  local item = 1
  while item <= count do
    local kind, p1, p2, p3, op, k, cost, taken, since, extra = unpack('<BdddBI2dddd', arg, at + 8)
    if taken < 0 then taken = now end
    local yes, remaining, retry, reset, delay = true, 0, 0, 0, 0
    -- The new string, and the answer when it is in place.
    local put, after, reset_then = nil, 0, 0
    -- Charged under another limit that is still somebody's: it moves here when a call passes.
    local beside = false
    -- 2: the lease was held before, so that nothing was taken.
    local taking = 1

    -- Leases and fleets have their sets first. The same key may have come with several messages, each time under another
    -- number.
    local name = KEYS[kind <= 6 and k or k + 2]
    local s = strings[name]
    if not s then
      -- What is no string is not ours: it counts as nothing, and is written over.
      s = pcall('GET', name)
      if type(s) ~= 'string' then s = '' end
      strings[name] = s
    end
    local length = #s
    if kind == 5 or kind == 6 then
      local head = sub(arg, at, at + 32)
--@log
    else
      -- Records of 65 bytes in the subject's one string: id, kind, three parameters; a, b, written, idle from.
      local a, b, t, e = 0, -1, 0, 0
      local head = sub(arg, at, at + 32)
      if length % 65 ~= 0 then s, length = '', 0 end
      local from = find(s, head, 1, true)
      -- What looks like a record may be the end of one and the start of the next.
      while from and from % 65 ~= 1 do from = find(s, head, from + 1, true) end
      local known, moved = from, false
      if from then
        a, b, t, e = unpack('<dddd', s, from + 33)
      else
        from = length + 1
        if length > 0 then
          local id = sub(head, 1, 8)
          local other = find(s, id, 1, true)
          while other and other % 65 ~= 1 do other = find(s, id, other + 1, true) end
          if other then
            -- Charged under other parameters. Requests in progress are no usage of a rate, nor the reverse.
            from = other
            local old_kind, o1, o2, o3
            old_kind, o1, o2, o3, a, b, t, e = unpack('<Bddddddd', s, from + 8)
            if old_kind <= 4 and kind <= 4 then
              beside = since == -2 or since < -2 and t >= -since
              moved = not beside
--@convert
            elseif old_kind <= 4 or kind <= 4 then
              a, b, t, e = 0, -1, 0, 0
            else
              known = from
            end
          end
        end
      end
      local n = now
      if kind <= 4 then
        if t > n then
          if t - n <= BACK then
            n = t
          else
            -- Of a sliding window it is a count, else an instant.
            if b >= 0 and kind ~= 3 then b = b - (t - n) end
            t, moved = n, true
          end
        end
        if moved then
          -- Converted or set back: that has to be kept even if the call is refused. It is idle after the longest that such
          -- a limit can take, or sooner.
          local longest = kind == 0 and p1 * p2 / p3 + 1 or kind == 4 and (p1 / p2 + 1) * p3 or 2 * p2
          s = sub(s, 1, from - 1) .. pack('<c33dddd', head, a, b, t, n + longest - longest % 1) .. sub(s, from + 65)
          strings[name] = s
          if not changed then changed = name elseif changed ~= name then others_changed = others_changed or {}; others_changed[name] = true end
        end
        -- The new state; what was there stays unless a branch says otherwise.
        local na, nb, write = a, b, false
        if op == 6 then
          -- Forget the key under this family, whatever the parameters.
          if from <= length then
            strings[name] = sub(s, 1, from - 1) .. sub(s, from + 65)
            if not changed then changed = name elseif changed ~= name then others_changed = others_changed or {}; others_changed[name] = true end
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
        if beside and not yes and op <= 1 and retry >= 0 then
--@beside
        end
        if write and not dry then
          put = pack('<c33dddd', head, na, nb, n, n + reset_then)
          if from > 1 then put = sub(s, 1, from - 1) .. put end
          if from + 65 <= length then put = put .. sub(s, from + 65) end
        end
      else
--@concurrency
      end
    end

    if dry and item == refused and yes then yes, retry = false, refused_retry end
    -- Only charges can refuse each other.
    if not yes and op < 2 and count > 1 and not dry then
      if before then strings[mine] = before end
      if others_before then
        for other, was in pairs(others_before) do strings[other] = was end
      end
      before, others_before, set, more_leases = nil, nil, nil, nil
      refused, refused_retry = item, retry
      dry, at, last, item = true, start, first, 1
    else
      if put then
        if count == 1 and #put == 65 then
          -- Alone in its group and in its string, as most are.
          strings[name] = put
          if reset_then > 0 then
            call('SET', name, put, 'PX', (reset_then + -reset_then % 1000) / 1000 + spare)
          else
            strings[name] = ''
            call('DEL', name)
          end
        else
          if not before then
            mine, before = name, strings[name]
          elseif mine ~= name then
            others_before = others_before or {}
            others_before[name] = others_before[name] or strings[name]
          end
          strings[name] = put
        end
        remaining, reset = after, reset_then
      end
      local answer = yes and taking or 0
      last = last + 1
      if replies then
        replies[last] = pack('<ddddd', answer, remaining, retry, reset, delay)
      else
        only = pack('<dddddd', now, answer, remaining, retry, reset, delay)
      end
      at, item = at + 84, item + 1
    end
  end

  while set do
--@concurrency_commit
  end
  if before then
    local name = mine
    if not changed then changed = name elseif changed ~= name then others_changed = others_changed or {}; others_changed[name] = true end
    if others_before then
      for name in pairs(others_before) do
        if not changed then changed = name elseif changed ~= name then others_changed = others_changed or {}; others_changed[name] = true end
      end
    end
  end
end

while changed do
  local s = strings[changed]
  local idle = lasts and lasts[changed]
  if not idle then
    idle = spare > 0 and now + 1 or now
    local over = false
    for from = 58, #s, 65 do
      local e = unpack('<d', s, from)
      if e > idle then idle = e elseif e <= now then over = true end
    end
    idle = idle - now
    if over and #s > 520 and spare == 0 then
      -- What is idle would have expired if it were alone. Where there is little of it, it may stay.
      local live, c = {}, 0
      for from = 1, #s, 65 do
        if unpack('<d', s, from + 57) > now then
          c = c + 1
          live[c] = sub(s, from, from + 64)
        end
      end
      s = table.concat(live)
    end
  end
  if s == '' or idle <= 0 then
    call('DEL', changed)
  else
    call('SET', changed, s, 'PX', (idle + -idle % 1000) / 1000 + spare)
  end
  changed = others_changed and next(others_changed)
  if changed then others_changed[changed] = nil end
end
if replies then return table.concat(replies, '', 1, last) end
return only
