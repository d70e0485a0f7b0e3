use super::*;
use crate::test_start;
use tandem_units::ByteCount;

fn limited(limits: UserLimits) -> Users {
    Users::new(UserRules { default: limits, ..UserRules::default() })
}

#[test]
fn what_flows_carry_is_added_for_their_user() {
    let (users, now) = (Users::default(), test_start());
    let account = users.account("alice", None);
    let place = account.place(Counted::Flows).unwrap();
    let mut meter = Meter::new(now, Arc::clone(&account));
    for millis in [0, 50, 99, 150] {
        let now = now + Duration::from_millis(millis);
        assert_eq!(meter.datagram(now, Direction::ToTarget, 100), MeterVerdict::Pass);
    }
    let (name, counters) = users.counters().pop().unwrap();
    assert_eq!((&*name, counters.flows), ("alice", 1));
    assert_eq!((counters.bytes.to_target, counters.datagrams.to_target), (400, 4));
    assert_eq!(meter.passed(now, Direction::ToClient, (70_000, 0)), MeterVerdict::Pass);
    assert_eq!(meter.bytes(), EachWay { to_target: 400, to_client: 70_000 });
    drop((meter, place));
    let usage = users.usage().pop().unwrap();
    let counters = usage.counters;
    assert_eq!(
        (counters.flows, counters.bytes.to_client, counters.datagrams.to_client),
        (0, 70_000, 0)
    );
    assert_eq!(usage.month_bytes, EachWay { to_target: 400, to_client: 70_000 });
}

#[test]
fn a_limit_holds_for_all_clones_and_changes_at_once() {
    let users = limited(UserLimits { flows: Bound::At(2), ..UserLimits::default() });
    let (one, other) = (users.account("alice", None), users.clone().account("alice", None));
    let places = [one.place(Counted::Flows).unwrap(), other.place(Counted::Flows).unwrap()];
    assert_eq!(other.place(Counted::Flows).unwrap_err(), Refusal::Flows);
    assert!(users.account("bob", None).place(Counted::Flows).is_ok());
    users.set_rules(UserRules::default());
    assert!(one.place(Counted::Flows).is_ok());
    drop(places);
    let counters = users.usage()[0].counters;
    assert_eq!((counters.flows, counters.refused.flows), (0, 1));
}

#[test]
fn a_user_has_its_own_limits_before_those_of_its_group_and_the_default() {
    let flows = |flows| UserLimits { flows: Bound::At(flows), ..UserLimits::default() };
    let rule = |group: Option<&str>, limits| UserRule { group: group.map(str::to_owned), limits };
    let users = Users::new(UserRules {
        default: UserLimits { lookups: Bound::Unlimited, ..flows(1) },
        groups: [("staff".to_owned(), flows(2)), ("guests".to_owned(), flows(3))].into(),
        users: [
            ("alice".to_owned(), rule(None, flows(4))),
            ("bob".to_owned(), rule(Some("guests"), UserLimits::default())),
        ]
        .into(),
    });
    for (name, claimed, flows) in [
        ("alice", Some("staff"), Some(4)),
        ("bob", Some("staff"), Some(3)),
        ("carol", Some("staff"), Some(2)),
        ("dave", Some("nobody knows this group"), Some(1)),
        ("erin", None, Some(1)),
        (UserRules::ANYONE, None, None),
    ] {
        users.account(name, claimed);
        let usage = users.usage().into_iter().find(|usage| usage.name == name).unwrap();
        assert_eq!(usage.limits.flows.get().copied(), flows, "{name}");
        assert_eq!(usage.limits.lookups.get(), None, "{name}");
    }
    users.restore([KeptUsage {
        name: "carol".to_owned(),
        month: "2026-11".parse().unwrap(),
        bytes: EachWay::default(),
        last_seen: Duration::ZERO,
    }]);
    let carol = users.usage().into_iter().find(|usage| usage.name == "carol").unwrap();
    assert_eq!(carol.group.as_deref(), Some("staff"), "what she has used says nothing of groups");
    assert_eq!(carol.limits.flows, Bound::At(2));
    users.account("carol", None);
    let carol = users.usage().into_iter().find(|usage| usage.name == "carol").unwrap();
    assert_eq!(carol.limits.flows, Bound::At(1), "she has left the group");
}

#[test]
fn bytes_of_a_month_end_with_it() {
    let (users, now) = (
        limited(UserLimits {
            month_bytes: Bound::At(ByteCount::new(1000)),
            ..UserLimits::default()
        }),
        test_start(),
    );
    let november = Duration::from_secs(1_793_923_200); // 2026-11-06
    users.set_time(now, november);
    let bytes = EachWay { to_target: 100, to_client: 500 };
    let kept = |name: &str, month: &str| KeptUsage {
        name: name.to_owned(),
        month: month.parse().unwrap(),
        bytes,
        last_seen: november,
    };
    users.restore([kept("alice", "2026-11"), kept("bob", "2026-10")]);
    let mut meter = Meter::new(now, users.account("alice", None));
    let verdict = meter.datagram(now, Direction::ToClient, 400);
    assert_eq!(verdict, MeterVerdict::MonthUsed);
    assert!(users.account("alice", None).has_used_month());
    let mut meter = Meter::new(now, users.account("bob", None));
    assert_eq!(meter.datagram(now, Direction::ToClient, 400), MeterVerdict::Pass);
    users.set_time(now, november + Duration::from_secs(25 * 86_400));
    assert_eq!(users.month().unwrap().to_string(), "2026-12");
    assert!(!users.account("alice", None).has_used_month());
    assert_eq!(users.usage()[0].month_bytes.total(), 0);
}

#[test]
fn what_another_process_tells_is_never_less_than_before() {
    let (users, november) = (Users::default(), Duration::from_secs(1_793_923_200));
    users.set_time(test_start(), november);
    for (bytes, sum) in [(5, 5), (u64::MAX - 3, u64::MAX), (u64::MAX, u64::MAX), (1, u64::MAX)] {
        users.add_used([KeptUsage {
            name: "alice".to_owned(),
            month: Month::of(november),
            bytes: EachWay { to_target: bytes, to_client: 0 },
            last_seen: november,
        }]);
        assert_eq!(users.usage().pop().unwrap().month_bytes.to_target, sum);
    }
}

#[test]
fn what_is_kept_is_counted_once_and_what_is_not_is_known() {
    let (users, november) = (Users::default(), Duration::from_secs(1_793_923_200));
    users.set_time(test_start(), november);
    let usage = |name: &str, bytes| KeptUsage {
        name: name.to_owned(),
        month: Month::of(november),
        bytes: EachWay { to_target: bytes, to_client: 2 * bytes },
        last_seen: november,
    };
    let alice = || {
        let usage = users.usage().pop().unwrap();
        (usage.month_bytes.to_client, usage.unkept_bytes.to_target)
    };
    users.add_used([usage("alice", 10)]);
    assert_eq!(alice(), (20, 10));
    users.restore([usage("alice", 100)]);
    assert_eq!(alice(), (220, 10));
    users.note_kept(&[usage("alice", 10), usage("nobody knows this user", 1)]);
    users.add_used([usage("alice", 1)]);
    assert_eq!(alice(), (222, 1));
    // Somebody else has added to what is kept, or it was lost.
    users.restore([usage("alice", 120)]);
    assert_eq!(alice(), (242, 1));
    users.restore([usage("alice", 5)]);
    assert_eq!(alice(), (12, 1));
    users.set_time(test_start(), Duration::ZERO);
    assert_eq!(alice(), (0, 0));
    users.restore([usage("alice", 100)]);
    users.add_used([usage("alice", 100)]);
    assert_eq!(alice(), (0, 0), "it is of another month");
}

#[test]
fn the_idle_users_that_were_not_seen_for_longest_are_forgotten() {
    let (users, now) = (Users::default(), test_start());
    users.set_time(now, Duration::from_secs(1));
    let oldest = users.account("a", None);
    oldest.see(now);
    for number in 0..Users::REMEMBERED_MAX {
        users.account(&format!("{number:06}"), None).see(now + Duration::from_secs(number as u64));
    }
    let usage = users.usage();
    assert!(usage.len() <= Users::REMEMBERED_MAX, "{}", usage.len());
    assert!(usage.iter().any(|it| it.name == "a"), "somebody still holds this one");
    assert!(!usage.iter().any(|it| it.name == "000000"));
}

#[test]
fn names_and_addresses_of_targets_are_told_apart() {
    let list =
        |names: &[&str]| Some(names.iter().map(|it| TargetRules::name(it).unwrap()).collect());
    let rules = TargetRules {
        prefixes: Some(vec!["192.0.2.0/24".parse().unwrap()]),
        ports: Some("443,8000-8999".parse().unwrap()),
        names: list(&["www.example.org", "*.example.net."]),
    };
    for (host, port, may_ask) in [
        ("www.example.org", 443, true),
        ("WWW.Example.org.", 8080, true),
        ("www.example.org", 80, false),
        ("example.org", 443, false),
        ("xwww.example.org", 443, false),
        ("a.example.net", 443, true),
        ("a.b.EXAMPLE.net", 443, true),
        ("example.net", 443, false),
        ("badexample.net", 443, false),
        (".example.net", 443, false),
        ("192.0.2.7", 443, true),
        ("::ffff:192.0.2.7", 443, true),
        ("198.51.100.1", 443, false),
        ("\u{e4}.example.net", 443, true),
    ] {
        assert_eq!(rules.may_ask(host, port), may_ask, "{host}:{port}");
    }
    let only_prefixes = TargetRules { names: None, ports: None, ..rules };
    assert!(only_prefixes.may_ask("any.name", 1) && only_prefixes.may_ask("198.51.100.1", 1));
    assert!(!only_prefixes.may_reach("198.51.100.1".parse().unwrap()));
    assert!(only_prefixes.may_reach("192.0.2.1".parse().unwrap()));
    assert!(TargetRules::default().may_ask("::1", 1));
    for bad in ["", "*", "*.", "a..b", "*.*.org", "w*.org", "192.0.2.1", "a b", "http://a"] {
        assert!(TargetRules::name(bad).is_err(), "{bad:?}");
    }
}
