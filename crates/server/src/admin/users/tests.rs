use super::*;

fn carried(bytes: u64) -> UserCounters {
    let bytes = EachWay { to_target: bytes, to_client: 2 * bytes };
    UserCounters { connections: 1, flows: 2, bytes, ..UserCounters::default() }
}

fn update(series: &mut UserSeries, second: u32, users: &[(String, UserCounters)]) {
    let users = users.iter().map(|(name, counters)| (Arc::from(name.as_str()), *counters));
    let mut users: Vec<_> = users.collect();
    users.sort_by(|a: &(Arc<str>, _), b| a.0.cmp(&b.0));
    series.update(tandem_net::clock::now() + Duration::from_secs(second.into()), users);
}

/// The value of a user's counter of bytes to targets.
fn series_of(series: &UserSeries, user: &str) -> Option<u64> {
    let grown = if user == OTHERS { Some(&series.others) } else { series.own.get(user) };
    grown.map(|it| it.bytes[0])
}

#[test]
fn a_bounded_number_of_users_has_series_of_its_own() {
    let mut series = UserSeries::default();
    let users: Vec<_> = (0..1000).map(|user| (format!("user-{user:03}"), carried(10))).collect();
    update(&mut series, 0, &users);
    assert_eq!((series.own.len(), series.known()), (OWN_MAX, 1000));
    assert_eq!(series_of(&series, OTHERS), Some(9500));
    let samples: usize = series.families().iter().map(Family::len).sum();
    assert_eq!(samples, 1 + (OWN_MAX + 1) * 12);
    assert_eq!(series.busiest().len(), BUSIEST);
}

#[test]
fn users_that_carry_more_take_over_and_no_counter_falls() {
    let mut series = UserSeries::default();
    let mut users: Vec<_> = (0..100).map(|user| (format!("user-{user:03}"), carried(10))).collect();
    let mut before = BTreeMap::new();
    for second in 0..3 * LOOKS_PER_CHANGE {
        users[99].1 = carried(u64::from(second) * 1_000_000);
        users[98].1 = carried(u64::from(second) * 1000);
        update(&mut series, second, &users);
        for user in users.iter().map(|(name, _)| name.as_str()).chain([OTHERS]) {
            let value = series_of(&series, user);
            let old = before.insert(user.to_owned(), value).flatten();
            assert!(value.is_none() || value >= old, "{user} fell from {old:?} to {value:?}");
        }
        let is_own = |user: usize| series.own.contains_key(users[user].0.as_str());
        assert_eq!(is_own(99), second >= LOOKS_PER_CHANGE - 1, "one change in a minute");
        assert_eq!(is_own(98), second >= 2 * LOOKS_PER_CHANGE - 1);
        assert_eq!(series.own.len(), OWN_MAX);
    }
    let busiest = series.busiest();
    assert_eq!(busiest[0].name, "user-099");
    assert!((busiest[0].to_target_mbps - 8.0).abs() < 0.5, "{busiest:?}");
}

#[test]
fn a_user_that_was_forgotten_has_no_series_and_later_counts_from_zero() {
    let mut series = UserSeries::default();
    let alice = |bytes| [("alice".to_owned(), carried(bytes))];
    update(&mut series, 0, &alice(100));
    update(&mut series, 1, &[]);
    assert_eq!((series_of(&series, "alice"), series.busiest().len()), (None, 0));
    update(&mut series, 2, &alice(30));
    update(&mut series, 3, &alice(20)); // forgotten, and known again since the last look
    assert_eq!(series_of(&series, "alice"), Some(50));
}

#[test]
fn users_without_anything_open_take_no_series() {
    let mut series = UserSeries::default();
    update(&mut series, 0, &[("restored".to_owned(), UserCounters::default())]);
    assert!(series.own.is_empty() && series.busiest().is_empty());
    assert_eq!(series.known(), 1);
}
