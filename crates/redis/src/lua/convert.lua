          -- The instant of the change, if the caller knows it; else now.
          local change = since < -2 and not beside and -since or since
          if change < 0 or change > now then change = now end
          if change < t then change = t end
          if old_kind == kind and kind == 0 then
            local debt = a - o3 * (change - t)
            if debt < 0 then debt = 0 elseif debt > o1 * o2 then debt = o1 * o2 end
            -- The same tokens in the new units: whole ones and the rest apart, so that no product exceeds 2^53.
            local whole = floor(debt / o2)
            a = whole * p2 + ceil((debt - whole * o2) * p2 / o2)
            if a > p1 * p2 then a = p1 * p2 end
          elseif old_kind <= 2 and kind <= 2 and old_kind >= 1 and kind >= 1 then
            local start, used
            if old_kind == 2 then
              if a > 0 and b >= 0 and change < b + o2 then start, used = b, a else start, used = change, 0 end
            else
              start = change < o3 and 0 or floor((change - o3) / o2) * o2 + o3
              used = t >= start and a or 0
            end
            if kind == 2 then
              b = used > 0 and change < start + p2 and start or change
            else
              b = -1
            end
            a = used > p1 and p1 or used
          elseif old_kind == kind and kind == 3 then
            local index = floor(change / o2)
            local age = index - floor(t / o2)
            if b < 0 then b = 0 end
            if age == 1 then a, b = 0, a elseif age > 1 then a, b = 0, 0 end
            if p2 ~= o2 or b > p1 then
              a, b = ceil(b * (o2 - (change - index * o2)) / o2) + a, 0
            end
            if a > p1 then a = p1 end
          elseif old_kind == kind and kind == 4 then
            if b >= 0 then
              local batches = floor((change - b) / o3)
              if batches > 0 then a, b = a - batches * o2, b + batches * o3 end
              if a < 0 then a = 0 end
              if change - b >= p3 then b = change end
              if a > p1 then a = p1 end
            end
          else
            -- Another algorithm: the same share of the quota.
            local share = 0
            if old_kind == 0 then
              share = (a - o3 * (change - t)) / (o1 * o2)
            elseif old_kind == 1 then
              if t >= (change < o3 and 0 or floor((change - o3) / o2) * o2 + o3) then share = a / o1 end
            elseif old_kind == 2 then
              if a > 0 and change < b + o2 then share = a / o1 end
            elseif old_kind == 3 then
              local index = floor(change / o2)
              local age = index - floor(t / o2)
              if age == 1 then a, b = 0, a elseif age > 1 then a, b = 0, 0 end
              share = (ceil((b > 0 and b or 0) * (o2 - (change - index * o2)) / o2) + a) / o1
            elseif b >= 0 then
              share = (a - floor((change - b) / o3) * o2) / o1
            end
            if share < 0 then share = 0 elseif share > 1 then share = 1 end
            -- As a share of 2^32, as in memory: a product of the bare share may lie above a whole number that it should be.
            a = ceil(floor(share * 4294967296) * p1 / 4294967296)
            if kind == 0 then a = a * p2 end
            b = -1
            if kind == 2 or kind == 4 then b = a > 0 and change or -1 elseif kind == 3 then b = 0 end
          end
          t = change
