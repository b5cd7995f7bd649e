//! Tables of the reports.

/// The first row of a table, over a column of names and these.
pub fn header(cells: &[String]) -> String {
    format!("{}|{}\n", row("", cells), "---|".repeat(cells.len() + 1))
}

pub fn row(first: &str, cells: &[String]) -> String {
    format!("| {first} | {} |\n", cells.join(" | "))
}

/// Whether something is met.
pub fn answer(is_met: bool) -> String {
    if is_met { "yes" } else { "**no**" }.to_owned()
}
