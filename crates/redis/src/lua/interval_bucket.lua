        -- p1 capacity, p2 refill, p3 period; a: used; b: when the last batch came, -1 before the first call.
        local used, beat = 0, n
        if b >= 0 then
          if b > n then n = b end
          local batches = floor((n - b) / p3)
          used, beat = a - batches * p2, b + batches * p3
          if used < 0 then used = 0 end
        end
        remaining = p1 > used and p1 - used or 0
        reset = used > 0 and beat + ceil(used / p2) * p3 - n or 0
        na, nb = used, beat
        if op <= 1 then
          if cost > p1 then
            yes, retry = false, -1
          elseif used + cost > p1 then
            yes, retry = false, beat + ceil((used + cost - p1) / p2) * p3 - n
          elseif op == 0 and cost > 0 then
            write, na = true, used + cost
          end
        elseif op <= 3 then
          if used > 0 and cost > 0 and taken >= beat then
            write, na = true, used > cost and used - cost or 0
          end
        else
          yes = false
        end
        if write then
          after = p1 > na and p1 - na or 0
          reset_then = na > 0 and beat + ceil(na / p2) * p3 - n or 0
        end
