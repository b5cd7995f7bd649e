//! Puts the script together: each algorithm's Lua stands in a file of the name of its Rust twin, and lands in the
//! branch of `head.lua` that names it. Comments and indentation are left behind: the server keeps the whole text.

use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let sources = Path::new("src/lua");
    println!("cargo::rerun-if-changed={}", sources.display());
    let mut script = String::new();
    include(sources, "head", &mut script)?;
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo sets OUT_DIR"))?;
    fs::write(Path::new(&out).join("decide.lua"), script)
}

fn include(sources: &Path, name: &str, script: &mut String) -> io::Result<()> {
    for line in fs::read_to_string(sources.join(name).with_extension("lua"))?.lines().map(str::trim) {
        match line.strip_prefix("--@") {
            Some(part) => include(sources, part, script)?,
            None if line.is_empty() || line.starts_with("--") => {}
            None => {
                script.push_str(line);
                script.push('\n');
            }
        }
    }
    Ok(())
}
