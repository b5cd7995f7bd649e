//! How busy this machine is, from whichever source the policy names.
