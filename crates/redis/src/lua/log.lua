      -- A key of its own: kind and three parameters, the sum before the first entry, the last write, then entries of 16
      -- bytes, oldest first: when, and the sum up to and with it. p1 limit, p2 how long an entry counts, p3 grain; extra: the smallest
      -- distance between two calls; kind 6 counts refused calls too.
      if length % 16 ~= 9 or length < 41 then s = '' end
      length = s == '' and 0 or (length - 41) / 16
      local before, written = 0, 0
      if s ~= '' then before, written = unpack('<dd', s, 26) end
      if length > 0 and sub(s, 2, 25) ~= sub(head, 10, 33) then
--@log_convert
      end
      local n, newest, sum = now, nil, before
      if length > 0 then
        newest, sum = unpack('<dd', s, 26 + 16 * length)
        if written > n then
          if written - n <= BACK then
            n = written
          else
            -- Every entry goes back by as much.
            local shift, parts = written - n, { sub(s, 1, 33) .. pack('<d', n) }
            for i = 1, length do
              local t, c = unpack('<dd', s, 26 + 16 * i)
              newest = t > shift and t - shift or 0
              parts[i + 1] = pack('<dd', newest, c)
            end
            s = table.concat(parts)
            strings[name] = s
            call('SET', name, s, 'PX', ceil(p2 / 1000) + spare)
          end
        end
      end
      -- The first entry that still counts.
      local low, high = 1, length + 1
      while low < high do
        local middle = floor((low + high) / 2)
        if n < unpack('<d', s, 26 + 16 * middle) + p2 then high = middle else low = middle + 1 end
      end
      local live = low
      local gone = before
      if live > 1 then gone = unpack('<d', s, 34 + 16 * (live - 1)) end
      local used = sum - gone
      local alive = live <= length
      remaining, reset = p1 > used and p1 - used or 0, alive and newest + p2 - n or 0
      if op <= 1 then
        local close = extra > 0 and cost > 0 and alive and n - newest < extra
        yes = cost <= p1 and used + cost <= p1 and not close
        local entries = s
        if op == 0 and cost > 0 and (yes or (kind == 6 and cost <= p1)) then
          local stamp = n - n % p3
          local total = sum + cost
          local head_part = sub(head, 9, 33)
          local body
          if alive and newest == stamp then
            body = sub(s, 42 + 16 * (live - 1), 41 + 16 * (length - 1)) .. pack('<dd', stamp, total)
          else
            body = sub(s, 42 + 16 * (live - 1)) .. pack('<dd', stamp, total)
          end
          local base, entry_count = gone, #body / 16
          if total - gone > p1 then
            -- What lies before enough newer entries to exceed the limit can no longer change an answer.
            local from, to = 1, entry_count
            while from < to do
              local middle = floor((from + to) / 2)
              if total - unpack('<d', body, 16 * middle - 7) <= p1 then to = middle else from = middle + 1 end
            end
            if from > 1 then
              base = unpack('<d', body, 16 * (from - 1) - 7)
              body = sub(body, 16 * (from - 1) + 1)
            end
          end
          put = head_part .. pack('<dd', base, n) .. body
          used, newest, gone = total - base, stamp, base
          after, reset_then = p1 > used and p1 - used or 0, stamp + p2 - n
          if not yes then
            -- The answer to a refused call that counts is that of the state after it.
            s, live, length, before = put, 1, #body / 16, base
            remaining, reset = after, reset_then
          end
        end
        if not yes then
          if cost > p1 then
            retry = -1
          else
            local excess = used + cost - p1
            if excess > 0 and live <= length then
              local from, to = live, length
              while from < to do
                local middle = floor((from + to) / 2)
                if unpack('<d', s, 34 + 16 * middle) - gone >= excess then to = middle else from = middle + 1 end
              end
              retry = unpack('<d', s, 26 + 16 * from) + p2 - n
            end
            if extra > 0 and cost > 0 and newest and newest + extra - n > retry then retry = newest + extra - n end
            if beside and not put then
--@log_beside
            end
          end
        end
        -- A refused call that counts is written when it is known that all of its group are refused.
        if put and (yes and dry or not yes and not dry and count > 1) then put = nil end
        if put then lasts = lasts or {}; lasts[name] = reset_then end
      elseif op <= 3 then
        -- The charge's own entry first, then what came before it; an undo touches its own only.
        local entries, weights, m = {}, {}, 0
        local sum_before = gone
        for i = live, length do
          local t, c = unpack('<dd', s, 26 + 16 * i)
          m = m + 1
          entries[m], weights[m] = t, c - sum_before
          sum_before = c
        end
        local back = cost
        local own = taken - taken % p3
        for i = m, 1, -1 do
          if back > 0 and (op == 2 and entries[i] <= taken or op == 3 and entries[i] == own) then
            local part = weights[i] < back and weights[i] or back
            weights[i], back = weights[i] - part, back - part
            if op == 3 then break end
          end
        end
        if back < cost then
          local parts, total, latest, c = { sub(head, 9, 33) .. pack('<dd', 0, n) }, 0, nil, 1
          for i = 1, m do
            if weights[i] > 0 then
              total, latest, c = total + weights[i], entries[i], c + 1
              parts[c] = pack('<dd', latest, total)
            end
          end
          put = table.concat(parts)
          after, reset_then = p1 > total and p1 - total or 0, latest and latest + p2 - n or 0
          lasts = lasts or {}
          lasts[name] = reset_then
        end
      elseif op == 6 then
        strings[name] = ''
        call('DEL', name)
      else
        yes = false
      end
