//! Nothing but what is in `examples` and `tests`: Tollgate with whole servers around it.
