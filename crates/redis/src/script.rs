//! The script, put together by `build.rs`.

use std::sync::LazyLock;

use sha1_smol::Sha1;

/// The text that the server runs.
pub(crate) const SOURCE: &str = include_str!(concat!(env!("OUT_DIR"), "/decide.lua"));

/// The name that the server gives it.
pub(crate) fn sha() -> &'static str {
    static SHA: LazyLock<String> = LazyLock::new(|| Sha1::from(SOURCE).hexdigest());
    &SHA
}
