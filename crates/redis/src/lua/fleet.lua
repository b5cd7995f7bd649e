          -- p3: places that are not reserved. extra: 1 if the total counts too, 2 if the request is critical, 3 both.
          -- Critical requests have a set of their own.
          share, by_total, critical, other_key = p3, extra % 2 == 1, extra >= 2, KEYS[k + 1]
