        -- Leases (kind 7), and a fleet (8), which holds leases of two kinds. Units in progress are members of a sorted set by
        -- expiry: the lease's id, and for every further unit the id and its number. The record sums them up, so that sets
        -- are hardly ever read: a: how many, critical ones in units of MANY; b: none ends before.
        -- If the sets are gone without the record, or the reverse, they are counted: always before anybody is refused.
        -- p1 capacity; p2 how long a lease lasts.
        -- No call keeps the server for long: a lease weighs no more than HEAVIEST, and who waits for more leases to end than
        -- NEAR looks for the last of them by rank.
        local MANY, HEAVIEST, NEAR = 67108864, 1000, 16
        local z, share, by_total, critical, other_key = KEYS[k], p1, true, false, nil
        if kind == 8 then
--@fleet
        elseif a >= MANY or not known then
          -- Some may be left from when this was a fleet.
          other_key = KEYS[k + 1]
        end
        local shift = t - n
        if shift > 0 and shift <= BACK then
          n = t
        elseif shift > 0 or t < 0 then
--@concurrency_back
        end
        -- The smallest score of what is in progress; written down when it is needed.
        local live = nil
        local others, criticals = a % MANY, (a - a % MANY) / MANY
        local to_count, counted = op == 5 or not known or b <= n and (a > 0 or e > n), false
        local id, held, holds, expiry = nil, false, z, nil
        local fits
        while true do
          if to_count then
            counted, live = true, format('%d', n + 1)
            others, criticals, b = pcall('ZCOUNT', z, live, '+inf'), 0, -1
            -- What is no set is not ours: it goes, and counts as nothing. Other errors come once more.
            if type(others) == 'table' then
              if find(others.err, 'WRONGTYPE', 1, true) then call('DEL', z) end
              others = call('ZCOUNT', z, live, '+inf')
            end
            if other_key then
              criticals = pcall('ZCOUNT', other_key, live, '+inf')
              if type(criticals) == 'table' then
                if find(criticals.err, 'WRONGTYPE', 1, true) then call('DEL', other_key) end
                criticals = call('ZCOUNT', other_key, live, '+inf')
              end
            end
            for set = k, other_key and k + 1 or k do
              local edge = call('ZRANGEBYSCORE', KEYS[set], live, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
              if edge and (b < 0 or edge - b < 0) then b = edge + 0 end
            end
            if not known then
              e = 0
              for set = k, other_key and k + 1 or k do
                local edge = call('ZREVRANGEBYSCORE', KEYS[set], '+inf', live, 'WITHSCORES', 'LIMIT', 0, 1)[2]
                if edge and edge - e > 0 then e = edge + 0 end
              end
            end
          end
          fits = cost == 0 or (critical or others + cost <= share)
            and (not by_total or others + criticals + cost <= p1)
          -- The sets do not know yet of leases that this group takes.
          if fits or counted or op > 1 or set then break end
          to_count = true
        end
        if others + criticals > 0 and op ~= 5 then
          id = sub(arg, at + 68, at + 83)
          for set = k, other_key and k + 1 or k do
            holds = KEYS[set]
            expiry = pcall('ZSCORE', holds, id)
            if expiry then
              local ends = tonumber(expiry)
              if not ends then
                if find(expiry.err, 'WRONGTYPE', 1, true) then call('DEL', holds) end
                call('ZSCORE', holds, id)
              elseif ends > n then
                held, expiry = true, ends
                break
              end
            end
          end
        end
        if op >= 2 and op <= 4 then
          -- Giving back and extending are done at once: they never share a group with charges.
          yes = held
          if held and op <= 3 then
            -- Most leases weigh 1: those have no second member.
            local weight = call('ZREM', holds, id, id .. '\0\1')
            if weight == 2 then
              while call('ZREM', holds, id .. pack('>I2', weight)) == 1 do weight = weight + 1 end
            end
            if holds == z then others = others - weight else criticals = criticals - weight end
            if others < 0 then others = 0 end
            if criticals < 0 then criticals = 0 end
            if expiry == e then
              e, live = 0, format('%d', n + 1)
              for set = k, other_key and k + 1 or k do
                local edge = pcall('ZREVRANGEBYSCORE', KEYS[set], '+inf', live, 'WITHSCORES', 'LIMIT', 0, 1)
                if edge.err then
                  if find(edge.err, 'WRONGTYPE', 1, true) then call('DEL', KEYS[set]) end
                  call('ZREVRANGEBYSCORE', KEYS[set], '+inf', live, 'LIMIT', 0, 1)
                end
                edge = edge[2]
                if edge and edge - e > 0 then e = edge + 0 end
              end
            end
            moved = true
          elseif held then
            local ends = n + p2
            if ends > expiry then
              local later, member, unit = format('%d', ends), id, 0
              while call('ZADD', holds, 'XX', 'CH', later, member) == 1 do
                unit = unit + 1
                member = id .. pack('>I2', unit)
              end
              if ends > e then e = ends end
              call('PEXPIRE', holds, ceil((e - n) / 1000) + spare)
              moved = true
              if t >= 0 then t = n end
            end
          end
        end
        if op == 6 then
          call('DEL', z)
          if other_key then call('DEL', other_key) end
          others, criticals, e, moved = 0, 0, 0, from <= length
        end
        if moved then
          if counted and op < 6 then
            -- Some may have ended: those go, and are not found again.
            local over = format('%d', n)
            call('ZREMRANGEBYSCORE', z, '-inf', over)
            if other_key then call('ZREMRANGEBYSCORE', other_key, '-inf', over) end
          end
          local record = ''
          if e > n then
            record = pack('<c33dddd', head, others + criticals * MANY, b, t, e)
          elseif op < 6 then
            -- Nothing is held any more: nothing is kept.
            call('DEL', z)
            if other_key then call('DEL', other_key) end
          end
          strings[name] = sub(s, 1, from - 1) .. record .. sub(s, from + 65)
          if not changed then changed = name elseif changed ~= name then others_changed = others_changed or {}; others_changed[name] = true end
        end
        remaining = share > others and share - others or 0
        if by_total then
          local rest = p1 > others + criticals and p1 - others - criticals or 0
          if rest < remaining then remaining = rest end
        end
        reset = e > n and e - n or 0
        if op <= 1 then
          local never = cost > HEAVIEST or by_total and cost > p1 or not critical and cost > share
          if never then
            yes, retry = false, -1
          elseif not held and not fits then
            yes = false
            live = format('%d', n + 1)
            local excess = others + cost - share
            if not critical and excess > 0 then
              local last_one
              if excess <= NEAR then
                last_one = pcall('ZRANGEBYSCORE', z, live, '+inf', 'WITHSCORES', 'LIMIT', excess - 1, 1)
              else
                -- A limit that was lowered: to walk there would take as long as there are leases.
                local rank = call('ZCOUNT', z, '-inf', format('%d', n)) + excess - 1
                last_one = call('ZRANGE', z, rank, rank, 'WITHSCORES')
              end
              if last_one[2] then retry = last_one[2] - n end
            end
            if other_key and by_total then
--@fleet_wait
            end
            -- Only leases of this same call are in the way.
            if retry <= 0 then retry = p2 end
          elseif op == 0 and cost > 0 then
            local ends, weight = n + p2, cost
            if held then
              taking, weight = 2, 0
              if expiry > ends then ends = expiry end
            end
            local others_then = critical and others or others + weight
            local criticals_then = critical and criticals + weight or criticals
            after = share > others_then and share - others_then or 0
            if by_total then
              local rest = p1 > others_then + criticals_then and p1 - others_then - criticals_then or 0
              if rest < after then after = rest end
            end
            local newest = ends > e and ends or e
            reset_then = newest - n
            if b < 0 or ends < b then b = ends end
            if not dry then
              put = pack('<c33dddd', head, others_then + criticals_then * MANY, b, t < 0 and t or n, newest)
              if from > 1 then put = sub(s, 1, from - 1) .. put end
              if from + 65 <= length then put = put .. sub(s, from + 65) end
              if set then
                -- Another lease of this group comes first.
                more_leases = { set, set_other, sweep, score, units, lease, lease_lasts, more_leases }
              end
              set = held and holds or critical and other_key or z
              set_other = other_key and (set == z and other_key or z)
              sweep, score, units = counted and format('%d', n), format('%d', ends), weight
              lease, lease_lasts = id or sub(arg, at + 68, at + 83), ceil((newest - n) / 1000) + spare
            end
          end
        elseif op == 5 then
          -- A count: what others and what critical requests hold.
          remaining, retry = others, criticals
        end
