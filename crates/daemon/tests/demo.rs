//! The demonstration shows what the limiters do, so it is tested for what they must do.

#[test]
fn the_demonstration_shows_all_four_limiters_doing_their_work() {
    let shown = tollgate_daemon::demo::lines().unwrap().join("\n");
    for line in [
        "0.0 s  request 10 passes, 0 left",
        "0.0 s  request 11 is refused: retry after 200ms",
        "0.2 s  request 12 passes, 0 left",
        "6.4 s  after a pause of 6 s there are 10 again",
        "request 4 is refused, 3 in progress",
        "one ends and drops its permit, 2 in progress",
        "request 4 tries again and begins, 3 in progress",
        "all end, 0 in progress",
        "12 ordinary requests arrive: 8 begin, 4 are shed",
        "a critical request begins, 10 in progress",
        " 20 s  100 %            0 %    0 %    0 %       0 %",
        " 80 s  100 %          100 %   30 %    0 %       0 %",
        "160 s  100 %          100 %  100 %  100 %       0 %",
        "320 s   15 %            0 %    0 %    0 %       0 %",
    ] {
        assert!(shown.contains(line), "missing: {line}\nin:\n{shown}");
    }
}
