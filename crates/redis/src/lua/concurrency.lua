      -- Leases (kind 7) and fleet (8): sorted sets of units by expiry, a member for each unit: the lease's id, and for
      -- every further unit the id and its number; and `t`, whose score is the time of the last write. A fleet has a second set, of critical requests, under the next key.
      -- p1 capacity; p2 how long a lease lasts; p3 of a fleet: places that are not reserved. extra: 1 if the total
      -- counts too, 2 if the request is critical, 3 both.
      local z, n = KEYS[k], now
      local newest = call('ZRANGE', z, -1, -1, 'WITHSCORES')
      local latest = newest[2] and tonumber(newest[2]) or 0
      local other_key, by_total, critical = nil, kind == 7, false
      if kind == 8 then
        other_key = KEYS[k + 1]
        newest = call('ZRANGE', other_key, -1, -1, 'WITHSCORES')
        if newest[2] and tonumber(newest[2]) > latest then latest = tonumber(newest[2]) end
        by_total, critical = extra % 2 == 1, extra >= 2
      end
      local written = tonumber(call('ZSCORE', z, 't') or 0)
      if other_key then
        local there = tonumber(call('ZSCORE', other_key, 't') or 0)
        if there > written then written = there end
      end
      if written > n then
        if written - n <= BACK then
          n = written
        else
          -- The clock went back for good: every lease goes back by as much.
          local shift = written - n
          latest = latest > shift and latest - shift or 0
          for set = k, other_key and k + 1 or k do
            local list = call('ZRANGE', KEYS[set], 0, -1, 'WITHSCORES')
            for i = 1, #list, 2 do
              call('ZADD', KEYS[set], string.format('%.0f', tonumber(list[i + 1]) - shift), list[i])
            end
          end
        end
      end
      local live = string.format('(%.0f', n)
      local others = call('ZCOUNT', z, live, '+inf')
      local criticals = other_key and call('ZCOUNT', other_key, live, '+inf') or 0
      -- Where the lease is, if it is held.
      local mine, expiry = z, call('ZSCORE', z, lease)
      if not expiry and other_key then mine, expiry = other_key, call('ZSCORE', other_key, lease) end
      local held = expiry and tonumber(expiry) > n
      if op >= 2 and op <= 4 then
        -- Giving back and extending are done at once: they never share a group with charges.
        yes = held and true or false
        if held then
          local members, c, unit = { lease }, 1, 1
          while true do
            local further = lease .. pack('>I2', unit)
            local score = call('ZSCORE', mine, further)
            if not score or tonumber(score) <= n then break end
            c, unit = c + 1, unit + 1
            members[c] = further
          end
          if op <= 3 then
            for i = 1, c do call('ZREM', mine, members[i]) end
            -- Nothing is held any more: nothing is kept.
            if call('ZCARD', mine) == 1 and call('ZSCORE', mine, 't') then call('DEL', mine) end
            if mine == z then others = others - c else criticals = criticals - c end
          else
            local ends = n + p2
            if ends > tonumber(expiry) then
              for i = 1, c do call('ZADD', mine, string.format('%.0f', ends), members[i]) end
              call('ZADD', mine, string.format('%.0f', n), 't')
              newest = call('ZRANGE', mine, -1, -1, 'WITHSCORES')
              call('PEXPIRE', mine, ceil((tonumber(newest[2]) - n) / 1000) + spare)
            end
          end
          latest = 0
          newest = call('ZRANGE', z, -1, -1, 'WITHSCORES')
          if newest[2] then latest = tonumber(newest[2]) end
          if other_key then
            newest = call('ZRANGE', other_key, -1, -1, 'WITHSCORES')
            if newest[2] and tonumber(newest[2]) > latest then latest = tonumber(newest[2]) end
          end
        end
      end
      local share = kind == 7 and p1 or p3
      remaining = share > others and share - others or 0
      if kind == 8 and by_total then
        local rest = p1 > others + criticals and p1 - others - criticals or 0
        if rest < remaining then remaining = rest end
      end
      reset = latest > n and latest - n or 0
      if op <= 1 then
        local never = kind == 7 and cost > p1 or kind == 8 and (not critical and cost > p3 or by_total and cost > p1)
        local fits = cost == 0 or (critical or others + cost <= share)
          and (not by_total or others + criticals + cost <= p1)
        if never then
          yes, retry = false, -1
        elseif not held and not fits then
          yes = false
          local excess = others + cost - share
          if not critical and excess > 0 then
            local last_one = call('ZRANGEBYSCORE', z, live, '+inf', 'WITHSCORES', 'LIMIT', excess - 1, 1)
            if last_one[2] then retry = tonumber(last_one[2]) - n end
          end
          excess = others + criticals + cost - p1
          if kind == 8 and by_total and excess > 0 then
            -- The unit with which enough of both sets have ended.
            local a = call('ZRANGEBYSCORE', z, live, '+inf', 'WITHSCORES', 'LIMIT', 0, excess)
            local b = call('ZRANGEBYSCORE', other_key, live, '+inf', 'WITHSCORES', 'LIMIT', 0, excess)
            local i, j, score = 2, 2, nil
            for _ = 1, excess do
              local x, y = a[i] and tonumber(a[i]), b[j] and tonumber(b[j])
              if x and (not y or x <= y) then score, i = x, i + 2 elseif y then score, j = y, j + 2 end
            end
            if score and score - n > retry then retry = score - n end
          end
        elseif op == 0 and cost > 0 then
          kept = held and true or false
          local set = held and mine or critical and other_key or z
          local ends = n + p2
          if held and tonumber(expiry) > ends then ends = tonumber(expiry) end
          local units = held and 0 or cost
          act[item], key[item] = 3, k
          value[item] = { set, ends, units, n, lease, other_key, z }
          after = remaining
          if not held then
            local others_then = critical and others or others + cost
            local criticals_then = critical and criticals + cost or criticals
            after = share > others_then and share - others_then or 0
            if kind == 8 and by_total then
              local rest = p1 > others_then + criticals_then and p1 - others_then - criticals_then or 0
              if rest < after then after = rest end
            end
          end
          reset_then = (ends > latest and ends or latest) - n
        end
      elseif op == 5 then
        -- A count: what others and what critical requests hold.
        remaining, retry = others, criticals
      elseif op == 6 then
        call('DEL', z)
        if other_key then call('DEL', other_key) end
      end
