//! Figures of several repetitions.

pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    if figures.len() % 2 == 1 { figures[middle] } else { f64::midpoint(figures[middle - 1], figures[middle]) }
}

/// Where the median of all that could have been measured is, with a certainty of 95 %, by what was.
pub fn interval(figures: &[f64]) -> (f64, f64) {
    let mut figures = figures.to_vec();
    figures.sort_by(f64::total_cmp);
    // How many of them are below the median is a matter of throwing coins.
    let (count, spread) = (figures.len() as f64, 0.98 * (figures.len() as f64).sqrt());
    let from = (count / 2.0 - spread).floor().max(0.0) as usize;
    let to = ((count / 2.0 + spread).ceil() as usize).min(figures.len() - 1);
    (figures[from], figures[to])
}

/// The least and the most.
pub fn range(figures: &[f64]) -> (f64, f64) {
    let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
    let most = figures.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (least, most)
}
