// SPDX-License-Identifier: MIT OR Apache-2.0
//! The catalogue is sound, and results are judged, kept and shown.

use dwell_bench::result::in_order;

use super::*;

const S4_CASE: &str = "size threshold of loop on tmpfs";

pub(super) fn measured() -> FigureResult {
    let mut result = FigureResult::new("S4", Machine::default()).unwrap();
    result.measured(S4_CASE, Measured::exact(64.0)).unwrap();
    let took = Measured { value: 61.0, low: 59.0, high: 63.0 };
    result.measured("time that the probe takes", took).unwrap();
    result
}

#[test]
fn the_catalogue_is_sound() {
    let catalogue = catalogue();
    for (id, figure) in &catalogue.figures {
        assert!(catalogue.papers.contains_key(&figure.paper), "{id}");
        let cases: Vec<&str> = figure.cases.iter().map(|case| case.case.as_str()).collect();
        assert!(!cases.is_empty(), "{id}");
        assert_eq!(in_order(cases.clone()), cases, "{id} names a case twice");
        for case in &figure.cases {
            assert!(!case.unit.is_empty() && !case.paper.is_empty(), "{id}: {}", case.case);
            assert!(case.case.chars().count() <= 55, "{id}: too long for a chart: {}", case.case);
            assert!(case.paper_range.is_none_or(|(low, high)| low <= high), "{id}");
        }
    }
    assert!(catalogue.figure("M1").unwrap().cases.iter().all(|case| case.target.is_some()));
    let error = catalogue.figure("S99").unwrap_err().to_string();
    assert!(error.contains("S99") && error.contains("S13"), "{error}");
}

#[test]
fn measuring_judges_and_unknown_cases_are_errors() {
    let mut result = measured();
    assert_eq!(result.rows[0].verdict, None);
    assert_eq!(result.rows[1].verdict, Some(Verdict::Inconclusive));
    assert!(result.measured("nonsense", Measured::exact(1.0)).is_err());
    assert!(result.measured(S4_CASE, Measured::exact(f64::NAN)).is_err());
    assert!(FigureResult::new("S99", Machine::default()).is_err());
}

#[test]
fn one_round_has_no_interval_and_decides_nothing() {
    let case = "loop on tmpfs, idle, 4 KiB, apart";
    let mut result = FigureResult::new("M1", Machine::default()).unwrap();
    result.measured(case, Paired { median: 2.0, low: 2.0, high: 2.0, rounds: 1 }).unwrap();
    let row = result.row_mut(case).unwrap();
    assert_eq!((row.measured, row.low, row.high), (Some(2.0), None, None));
    assert_eq!(row.verdict, Some(Verdict::Inconclusive));
    assert!(result.markdown().contains("| 2.00× | inconclusive |"), "{}", result.markdown());
}

fn sampling() -> Sampling {
    Sampling {
        control: Paired { median: 1.0, low: 0.99, high: 1.01, rounds: 80 },
        width: 0.03,
        limit_s: 600.0,
        narrow: true,
        blocks: 20,
        noisy: 2,
        left_state: 0,
    }
}

#[test]
fn a_sampled_row_has_its_control_and_is_judged_by_its_whole_interval() {
    let case = "loop on tmpfs, idle, 4 KiB, apart";
    let ours = Paired { median: 2.0, low: 1.98, high: 2.02, rounds: 80 };
    let mut result = FigureResult::new("M1", Machine::default()).unwrap();
    result.sampled(case, ours, sampling()).unwrap();
    let row =
        |result: &FigureResult| result.rows.iter().find(|row| row.case == case).cloned().unwrap();
    assert_eq!(row(&result).verdict, Some(Verdict::Met));
    let table = result.markdown();
    let control = "1.000 [0.990–1.010], 20 blocks, 2 more not quiet";
    assert!(table.contains(control), "{table}");
    // No row has anything to do with a paper.
    let head =
        "| case | target | measured | interval | control | verdict |\n|---|---|---|---|---|---|\n";
    assert!(table.starts_with(head), "{table}");
    assert!(serde_json::to_string(&result).unwrap().contains("\"control\""));
    let wide = Paired { low: 1.81, ..ours };
    result.sampled(case, wide, Sampling { narrow: false, ..sampling() }).unwrap();
    assert_eq!((row(&result).verdict, row(&result).note), (Some(Verdict::Met), None));
    let crossing = Paired { low: 1.79, ..ours };
    result.sampled(case, crossing, sampling()).unwrap();
    assert_eq!(row(&result).verdict, Some(Verdict::Inconclusive));
    let odd = Paired { median: 0.92, low: 0.9, high: 0.94, rounds: 80 };
    result.sampled(case, ours, Sampling { control: odd, ..sampling() }).unwrap();
    assert_eq!(row(&result).verdict, Some(Verdict::Inconclusive));
    assert!(row(&result).note.unwrap().contains("differs from itself"));
}

#[test]
fn a_result_that_was_kept_is_judged_as_one_of_today() {
    let directory = tempfile::tempdir().unwrap();
    let case = "loop on tmpfs, idle, 4 KiB, apart";
    let odd = Paired { median: 0.92, low: 0.9, high: 0.94, rounds: 80 };
    let wide = Sampling { narrow: false, ..sampling() };
    let limit = wide.doubt().unwrap();
    for (sampling, remark, verdict, note) in [
        (wide.clone(), "", Verdict::Met, None),
        (wide.clone(), "; a remark", Verdict::Met, Some("a remark")),
        (Sampling { control: odd, ..wide }, "", Verdict::Inconclusive, Some("the baseline")),
    ] {
        let mut result = FigureResult::new("M1", Machine::default()).unwrap();
        let ours = Paired { median: 2.0, low: 1.9, high: 2.1, rounds: 80 };
        result.sampled(case, ours, sampling).unwrap();
        result.note(case, &format!("{limit}{remark}")).unwrap();
        let row = result.row_mut(case).unwrap();
        row.verdict = Some(Verdict::Inconclusive);
        // The target that it was once held to.
        let target = row.target.replace(Target::AtLeast(9.0));
        result.save(directory.path(), None).unwrap();
        let mut result = FigureResult::load(directory.path(), "M1").unwrap().unwrap();
        let row = result.row_mut(case).unwrap();
        assert_eq!((row.verdict, row.target), (Some(verdict), target));
        let found = row.note.as_deref();
        assert!(found.is_some() == note.is_some(), "{found:?}");
        assert!(found.unwrap_or_default().starts_with(note.unwrap_or_default()), "{found:?}");
    }
}

#[test]
fn a_figure_knows_which_rows_it_lacks_and_goes_on_only_on_such_a_machine() {
    let machine = Machine { cpu_model: "one".into(), cpus: 2, ..Machine::default() };
    let mut result = FigureResult::new("S4", machine.clone()).unwrap();
    assert!(result.lacks(S4_CASE) && !result.is_complete());
    result.measured(S4_CASE, Measured::exact(1.0)).unwrap();
    assert!(!result.lacks(S4_CASE) && !result.is_complete());
    let cases: Vec<String> = result.rows.iter().map(|row| row.case.clone()).collect();
    cases.iter().skip(1).for_each(|case| result.note(case, "no root").unwrap());
    result.measured(S4_CASE, Measured::exact(1.0)).unwrap();
    assert!(result.is_complete());
    result.postpone(&cases[1], "never quiet").unwrap();
    assert!(result.lacks(&cases[1]) && !result.is_complete());
    result.forget(|case| case == S4_CASE).unwrap();
    assert!(result.lacks(S4_CASE));
    assert!(result.goes_on(&machine, 1.0) && !result.goes_on(&machine, 0.1));
    let other = Machine { cpus: 3, ..machine.clone() };
    assert!(!result.goes_on(&other, 1.0));
    assert!(!FigureResult { rules: 1, ..result }.goes_on(&machine, 1.0));
}

#[test]
fn saved_results_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut result = measured();
    result.note(S4_CASE, "a | remark").unwrap();
    assert_eq!(FigureResult::load(directory.path(), "S4").unwrap(), None);
    result.save(directory.path(), None).unwrap();
    assert_eq!(FigureResult::load(directory.path(), "S4").unwrap(), Some(result.clone()));
    let svg = fs::read_to_string(directory.path().join("S4.svg")).unwrap();
    assert!(svg.contains("S4: Size threshold") && svg.contains("64.0 KiB"));
    assert!(!svg.contains("remark") && svg.contains("inconclusive"));
    result.note("one block more: requests spun for", &"long ".repeat(20)).unwrap();
    assert!(result.svg().contains("long lo…"));
    assert!(result.markdown().contains("a \\| remark"));
    fs::rename(directory.path().join("S4.json"), directory.path().join("S1.json")).unwrap();
    assert!(FigureResult::load(directory.path(), "S1").is_err());
}

#[test]
fn an_estimate_is_drawn_beside_the_gain_that_was_measured_after_it() {
    let mut result = FigureResult::new("V5", Machine::default()).unwrap();
    let estimated = result.rows.iter().find_map(|row| row.case.strip_suffix(ESTIMATED));
    let case = estimated.unwrap().to_owned();
    result.measured(&format!("{case}{ESTIMATED}"), Measured::exact(1.25)).unwrap();
    assert!(result.svg().contains(ESTIMATED));
    result.measured(&case, Measured::exact(1.5)).unwrap();
    let svg = result.svg();
    assert!(svg.contains("estimated 1.25×") && !svg.contains(ESTIMATED));
}

#[test]
fn every_figure_can_be_drawn_and_written_unmeasured() {
    for id in catalogue().figures.keys() {
        let result = FigureResult::new(id, Machine::default()).unwrap();
        assert!(!result.svg().contains("NaN"), "{id}");
        assert!(result.markdown().contains("rows are not measured yet"), "{id}");
    }
}

#[test]
fn a_row_with_both_sides_is_shown_as_two_lines_of_absolute_numbers() {
    let mut result = FigureResult::new("M4", Machine::default()).unwrap();
    let [first, second] = [0, 1].map(|at| result.rows[at].case.clone());
    let round = |p50_ns: u64| RoundResult {
        requests: 100,
        wall_ns: 1_000_000,
        p50_ns,
        user_ns: 250_000,
        system_ns: 250_000,
        ..RoundResult::default()
    };
    let sides = [Side::of("blocking", &[round(9_000)]), Side::of("`dwell run`", &[round(4_000)])];
    assert_eq!((sides[0].p50_ns, sides[0].p99_ns), (Some(9_000.0), None));
    assert_eq!((sides[0].per_second, sides[0].cores), (100_000.0, 0.5));
    result.measured(&first, Measured { value: 2.0, low: 1.9, high: 2.1 }).unwrap();
    result.beside(&first, sides.clone()).unwrap();
    result.note(&second, "needs root").unwrap();
    let table = result.markdown();
    assert!(table.starts_with("| job | how | p50 | per second | cores | speed |\n"), "{table}");
    let without = format!("| {first} | blocking | 9.00 µs | ");
    assert!(table.contains(&without) && table.contains(" | 0.50 | – |"), "{table}");
    assert!(table.contains("|  | `dwell run` | 4.00 µs | "), "{table}");
    assert!(table.contains("2.00× [1.90–2.10], met |"), "{table}");
    assert!(table.contains(&format!("| {second} | needs root | – | – | – | – |")), "{table}");
    result.measured(&first, Measured::exact(1.0)).unwrap();
    assert_eq!(result.rows[0].sides, None, "they were of another measurement");
}
