//! Tests with whole servers. One program for all of them: what they share is built once.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod admit;
mod concert;
mod door;

#[test]
fn every_file_of_tests_is_part_of_the_program_of_its_crate() {
    let crates = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap();
    let folders = crates
        .map(|found| found.unwrap().path().join("tests"))
        .filter(|tests| tests.join("main.rs").exists());
    for folder in folders {
        let program = std::fs::read_to_string(folder.join("main.rs")).unwrap();
        for file in std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()) {
            let name = file.file_stem().unwrap().to_str().unwrap();
            let is_one = file.extension().is_some_and(|kind| kind == "rs") && name != "main";
            assert!(
                !is_one || program.contains(&format!("mod {name};")),
                "{name} is not in {folder:?}/main.rs"
            );
        }
    }
}
