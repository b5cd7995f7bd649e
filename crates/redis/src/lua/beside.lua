          -- What was used stays where it is and ages as it did, until it leaves room for this call: the wait is the old limit's.
          local old_kind, o1, o2, o3, a, b, t = unpack('<Bdddddd', s, from + 8)
          local fits = p1 - cost
          if old_kind ~= kind and (old_kind == 0 or old_kind > 2 or kind == 0 or kind > 2) then
            -- The same share, and levels are rounded up.
            fits = floor(o1 * fits / p1) - 1
            if fits < 0 then fits = 0 end
          end
          local wait = 0
          if old_kind == 0 then
            local debt = a - o3 * (n - t)
            if debt > o1 * o2 then debt = o1 * o2 end
            if debt > fits * o2 then wait = ceil((debt - fits * o2) / o3) end
          elseif old_kind <= 2 then
            local ends
            if old_kind == 2 then
              ends = a > 0 and b >= 0 and b + o2 or n
            else
              local start = n < o3 and 0 or n - (n - o3) % o2
              ends = t < start and n or n < o3 and o3 or start + o2
            end
            if a > fits and ends > n then wait = ends - n end
          elseif old_kind == 3 then
            local index = floor(n / o2)
            local age = index - floor(t / o2)
            if b < 0 then b = 0 end
            if age == 1 then a, b = 0, a elseif age > 1 then a, b = 0, 0 end
            local left = o2 - (n - index * o2)
            if ceil(b * left / o2) + a > fits then
              if a <= fits then wait = left - floor((fits - a) * o2 / b) else wait = left + o2 - floor(fits * o2 / a) end
            end
          elseif b >= 0 then
            local batches = floor((n - b) / o3)
            local used = a - batches * o2
            if used > fits then wait = b + batches * o3 + ceil((used - fits) / o2) * o3 - n end
          end
          if wait > 0 then
            retry = wait
            if wait > reset then reset = wait end
          end
