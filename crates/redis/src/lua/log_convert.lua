        -- Charged under other parameters. An entry does not tell when in its grain a call came: it is taken for the
        -- latest instant.
        local o2, o3 = unpack('<dd', s, 10)
        beside = since == -2 or since < -2 and written >= -since
        local change = since < -2 and not beside and -since or since
        if change < 0 or change > now then change = now end
        if change < written then change = written end
        local parts, c, total, stamp, previous = { '' }, 1, 0, nil, before
        for i = 1, length do
          local t, up_to = unpack('<dd', s, 26 + 16 * i)
          if change < t + o2 then
            local latest = t + o3 - 1
            if latest > change then latest = change end
            latest = latest - latest % p3
            total = total + up_to - previous
            if latest ~= stamp then c = c + 1 end
            stamp = latest
            parts[c] = pack('<dd', latest, total)
          end
          previous = up_to
        end
        -- What lies before enough newer entries to exceed the limit can no longer change an answer.
        local from, base = 2, 0
        while from < c and total - unpack('<d', parts[from], 9) > p1 do
          base = unpack('<d', parts[from], 9)
          from = from + 1
        end
        s = sub(head, 9, 33) .. pack('<dd', base, change) .. table.concat(parts, '', from, c)
        length, before, written = c - from + 1, base, change
        if not beside then
          strings[name] = s
          call('SET', name, s, 'PX', ceil(p2 / 1000) + spare + (length == 0 and 1 or 0))
        end
