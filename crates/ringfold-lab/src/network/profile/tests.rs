use super::*;

#[test]
fn all_names_are_valid() {
    for name in Profile::names() {
        let profile = Profile::load(name).unwrap();
        assert!(!profile.description.is_empty(), "{name}");
    }
    let ocean = Profile::load("ocean").unwrap().path(0, 1);
    assert_eq!((ocean.rate, ocean.delay), (Some(200_000_000), Duration::from_millis(50)));
    let home = Profile::load("home").unwrap().access(7);
    assert_eq!((home.up, home.down), (Some(20_000_000), Some(100_000_000)));
}

#[test]
fn pairs_take_what_they_lack_from_all_and_repeat() {
    let mixed = Profile::load("mixed").unwrap();
    let rates = |from, to| mixed.path(from, to).rate.unwrap() / 1_000_000;
    assert_eq!(
        [rates(0, 1), rates(1, 0), rates(0, 2), rates(3, 0), rates(4, 5), rates(0, 4)],
        [200, 200, 500, 50, 200, 500]
    );
    assert_eq!(mixed.path(0, 1).queue, Duration::from_millis(100));
    let text = r#"{"pairs": [{"hosts": [0, 1], "one_way": true, "rate_mbit": 1}]}"#;
    let one_way = Profile::parse("test", text).unwrap();
    assert_eq!((one_way.path(0, 1).rate, one_way.path(1, 0).rate), (Some(1_000_000), None));
}

#[test]
fn errors_name_the_profile_and_the_value() {
    let error = |text: &str| Profile::parse("test", text).unwrap_err().to_string();
    assert!(error(r#"{"path": {"loss_percent": 101}}"#).contains("invalid profile test: invalid share 101"));
    assert!(error(r#"{"path": {"rate": 1}}"#).contains("unknown field `rate`"));
    assert!(error(r#"{"mtu": 100}"#).contains("invalid mtu 100"));
    assert!(error(r#"{"hosts": [{"up_mbit": 0}]}"#).contains("invalid rate 0"));
    assert!(Profile::load("nowhere").unwrap_err().to_string().contains("one of lan, metro"));
}
