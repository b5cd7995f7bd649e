              -- How long until enough of both sets have ended.
              excess = others + criticals + cost - p1
              if excess > 0 and excess <= NEAR then
                local a = pcall('ZRANGEBYSCORE', z, live, '+inf', 'WITHSCORES', 'LIMIT', 0, excess)
                local b = pcall('ZRANGEBYSCORE', other_key, live, '+inf', 'WITHSCORES', 'LIMIT', 0, excess)
                local i, j, score = 2, 2, nil
                for _ = 1, excess do
                  local x, y = a[i] and tonumber(a[i]), b[j] and tonumber(b[j])
                  if x and (not y or x <= y) then score, i = x, i + 2 elseif y then score, j = y, j + 2 end
                end
                if score and score - n > retry then retry = score - n end
              elseif excess > 0 then
                -- How many of them are in the first set is searched for, by halves.
                local over = format('%d', n)
                local x, y = call('ZCOUNT', z, '-inf', over) - 1, call('ZCOUNT', other_key, '-inf', over) - 1
                local of_z, of_other = call('ZCARD', z) - x - 1, call('ZCARD', other_key) - y - 1
                if excess > of_z + of_other then excess = of_z + of_other end
                local low, high = excess > of_other and excess - of_other or 0, excess < of_z and excess or of_z
                while low < high do
                  local half = floor((low + high) / 2)
                  local p, q = x + half + 1, y + excess - half
                  p = call('ZRANGE', z, p, p, 'WITHSCORES')[2]
                  q = call('ZRANGE', other_key, q, q, 'WITHSCORES')[2]
                  if p - q < 0 then low = half + 1 else high = half end
                end
                local p, q = x + low, y + excess - low
                p = low > 0 and call('ZRANGE', z, p, p, 'WITHSCORES')[2]
                q = low < excess and call('ZRANGE', other_key, q, q, 'WITHSCORES')[2]
                if p and p - n > retry then retry = p - n end
                if q and q - n > retry then retry = q - n end
              end
