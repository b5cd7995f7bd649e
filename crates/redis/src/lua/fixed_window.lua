        -- p1 limit, p2 window, p3 offset; a: used; b: start, of windows that the first call opens (kind 2).
        local start, ends
        if kind == 2 then
          if a > 0 and b >= 0 and n < b + p2 then start = b else start, a = n, 0 end
          ends = start + p2
          nb = start
        elseif n < p3 then
          start, ends = 0, p3
        else
          start = n - (n - p3) % p2
          ends = start + p2
        end
        if kind == 1 and t < start then a = 0 end
        local left = ends - n
        remaining, reset = p1 > a and p1 - a or 0, a > 0 and left or 0
        na = a
        if op <= 1 then
          if cost > p1 then
            yes, retry = false, -1
          elseif a + cost > p1 then
            yes, retry = false, left
          elseif op == 0 and cost > 0 then
            write, na = true, a + cost
          end
        elseif op <= 3 then
          if a > 0 and cost > 0 and taken >= start then
            write, na = true, a > cost and a - cost or 0
          end
        else
          yes = false
        end
        if write then after, reset_then = p1 > na and p1 - na or 0, na > 0 and left or 0 end
