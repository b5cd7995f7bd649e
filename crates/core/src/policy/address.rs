//! Who is at the other end: client addresses behind proxies, and sets of addresses.
