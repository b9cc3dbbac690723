//! Removals of one store, without a ledger: what goes, what stays, who is refused.

use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;

use super::*;
use crate::config::limits;
use crate::ledger::Pending;
use crate::os::RenameHow;
use crate::scope::{Generation, Mode, Scope};
use crate::store::Event;

pub(super) fn of_tenant(name: &str, generation: u64) -> Pending {
    Pending { scope: Scope::Tenant(tenant(name)), generation: Generation(generation), mode: Mode::Physical }
}

pub(super) fn global(generation: u64) -> Pending {
    Pending { scope: Scope::Global, generation: Generation(generation), mode: Mode::Physical }
}

/// A removal from its first step to the opening of the scope.
#[track_caller]
fn remove(store: &Arc<Store>, removal: &Pending) {
    store.remove(removal).unwrap();
    store.open_scope(&removal.scope, removal.generation).unwrap();
}

/// A tenant with a value, a value in a directory, an empty directory, a link and a pinned value.
pub(super) fn fill(store: &Arc<Store>, name: &str) -> NodeId {
    let dir = match store.tenant_node(&tenant(name)) {
        Ok(dir) => dir,
        Err(_) => store.make_tenant(name.as_bytes(), 0o2750, 0, 0).unwrap(),
    };
    put_in(store, dir, b"value", format!("value of {name}").as_bytes()).unwrap();
    let sub = store.make_dir(dir, b"sub", OWNER).unwrap();
    put_in(store, sub, b"deep", &[7; 20_000]).unwrap();
    store.make_dir(sub, b"empty", OWNER).unwrap();
    store.make_symlink(dir, b"link", b"value", OWNER).unwrap();
    let pinned = put_in(store, dir, b"pinned", b"pinned").unwrap();
    store.set_pinned(pinned, true).unwrap();
    dir
}

pub(super) fn status_of(store: &Arc<Store>, name: &str) -> (u64, &'static str, u64, u64) {
    let status = store.status().tenants.into_iter().find(|t| t.name == name).unwrap();
    (status.epoch, status.state, status.keys, status.bytes)
}

pub(super) fn of(store: &Store, name: &str) -> Vec<Vec<u8>> {
    tree(store).into_keys().filter(|(t, _)| t == name).map(|(_, path)| path).collect()
}

/// Somebody took a directory of a live store away by hand. A missing directory is an empty one: it holds up no removal,
/// its own tenant's or a global one.
#[test]
fn a_missing_directory_is_an_empty_one() {
    for (gone, removal) in [("a", global(1)), ("a/0", global(1)), ("a", of_tenant("a", 1))] {
        let bench = Bench::new(StoreSettings::default());
        let dir = fill(&bench, "a");
        fill(&bench, "b");
        bench.set_tenant_quota(&tenant("a"), Some(1 << 30)).unwrap();
        std::fs::remove_dir_all(bench.root().join("data/t").join(gone)).unwrap();
        bench.prove_ownership(&of_tenant("a", 1).scope).unwrap();
        remove(&bench, &removal);
        assert_eq!(status_of(&bench, "a"), (1, "ready", 0, 0), "{gone}");
        assert_eq!(names_in(&bench.root().join("data/t/a")), ["1"], "{gone}");
        let made = std::fs::metadata(bench.root().join("data/t/a")).unwrap();
        assert_eq!(made.permissions().mode() & 0o7777, 0o2750, "{gone}");
        bench.sound();
        put_in(&bench, dir, b"value", b"new").unwrap();
        let mut bench = bench;
        bench.close_and_reopen();
        assert_eq!(of(&bench, "a"), [b"value"], "{gone}");
        assert_eq!(bench.tenant_limits(&tenant("a")).unwrap().quota_bytes, Some(1 << 30), "{gone}");
    }
}

/// What cannot be made again is named in full, and the same request goes on once it can.
#[test]
fn what_stands_in_the_place_of_a_tenants_directory_is_named() {
    let bench = Bench::new(StoreSettings::default());
    fill(&bench, "a");
    let top = bench.root().join("data/t/a");
    std::fs::remove_dir_all(&top).unwrap();
    std::fs::write(&top, "a file").unwrap();
    let e = bench.remove(&global(1)).unwrap_err();
    assert!(e.to_string().contains("data/t/a"), "{e}");
    assert!(!bench.storage().applied().covers(&global(1).scope, global(1).generation));
    std::fs::remove_file(&top).unwrap();
    remove(&bench, &global(1));
    assert_eq!(status_of(&bench, "a"), (1, "ready", 0, 0));
    bench.sound();
}

/// The proof walks into nothing that is mounted there, and says how to take it away.
#[test]
fn a_mount_inside_a_tenant_is_found_before_anything_changes() {
    let bench = Bench::new(StoreSettings::default());
    fill(&bench, "a");
    let epoch = bench.root().join("data/t/a/0");
    let beside = bench.dir.path().join("beside");
    std::fs::create_dir(&beside).unwrap();
    std::fs::write(beside.join("precious"), "x").unwrap();
    let before = (tree(&bench), status_of(&bench, "a"));
    for at in [epoch.clone(), epoch.join(names_in(&epoch).remove(0))] {
        let bound = std::process::Command::new("mount").arg("--bind").args([&beside, &at]).output();
        if !bound.is_ok_and(|o| o.status.success()) {
            eprintln!("skipped: a bind mount needs root");
            return;
        }
        let proven = bench.prove_ownership(&of_tenant("a", 1).scope);
        assert!(std::process::Command::new("umount").arg(&at).status().unwrap().success());
        let e = proven.unwrap_err();
        assert_eq!(e.kind(), Kind::UnprovenOwnership, "{e}");
        let shown = at.strip_prefix(bench.root()).unwrap().to_str().unwrap().to_owned();
        assert!(e.to_string().contains(&shown) && e.to_string().contains("umount"), "{e}");
        assert_eq!((tree(&bench), status_of(&bench, "a")), before);
    }
    assert_eq!(names_in(&beside), ["precious"]);
    remove(&bench, &of_tenant("a", 1));
    bench.sound();
}

/// A path is said once.
#[test]
fn a_refusal_names_its_path_once() {
    let bench = Bench::new(StoreSettings::default());
    fill(&bench, "a");
    let epoch = bench.root().join("data/t/a/0");
    let upper = names_in(&epoch).remove(0);
    let lower = names_in(&epoch.join(&upper)).remove(0);
    let stranger = format!("data/t/a/0/{upper}/{lower}/stranger");
    std::fs::write(bench.root().join(&stranger), "x").unwrap();
    let said = bench.prove_ownership(&of_tenant("a", 1).scope).unwrap_err().to_string();
    assert_eq!(said.matches("stranger").count(), 1, "{said}");
    assert!(said.starts_with(&format!("{stranger} is not proven")), "{said}");
    assert!(said.contains("--logical"), "{said}");
}

/// Whoever caches the names may hang: the removal goes on after a while, since nothing of it opens any more.
#[test]
fn a_removal_does_not_wait_for_ever_until_its_nodes_are_forgotten() {
    let bench = Bench::new(StoreSettings::default());
    fill(&bench, "a");
    let events = bench.subscribe();
    let begun = std::time::Instant::now();
    remove(&bench, &of_tenant("a", 1));
    let took = begun.elapsed();
    assert!(took >= limits::FORGET_WAIT && took < limits::FORGET_WAIT * 6, "{took:?}");
    drop(events);
    assert_eq!(status_of(&bench, "a"), (1, "ready", 0, 0));
    bench.sound();
}

#[test]
fn a_tenants_removal_takes_what_is_the_tenants_and_nothing_else() {
    let mut bench = Bench::new(StoreSettings::default());
    let dir = fill(&bench, "a");
    fill(&bench, "b");
    bench.set_tenant_quota(&tenant("a"), Some(1 << 30)).unwrap();
    let (before, b_before) = (tree(&bench), status_of(&bench, "b"));
    remove(&bench, &of_tenant("a", 3));
    assert_eq!(of(&bench, "a"), [b""; 0]);
    assert_eq!(status_of(&bench, "a"), (3, "ready", 0, 0));
    assert_eq!(status_of(&bench, "b"), b_before);
    let others: BTreeMap<_, _> = before.into_iter().filter(|((t, _), _)| t != "a").collect();
    assert_eq!(tree(&bench), others);
    assert_eq!(names_in(&bench.root().join("data/t/a")), ["3"]);
    assert_eq!(names_in(&bench.root().join("data/t/a/3")), [""; 0]);
    assert_eq!(names_in(&bench.root().join("data/.trash")), [""; 0]);
    // The directory itself stays: the same node, owner, mode and settings.
    assert_eq!(bench.tenant_node(&tenant("a")).unwrap(), dir);
    assert_eq!(bench.attr(dir).unwrap().unwrap().attr.mode & 0o7777, 0o2750);
    assert_eq!(bench.tenant_limits(&tenant("a")).unwrap().quota_bytes, Some(1 << 30));
    bench.sound();
    // And it takes new values, under the new epoch.
    let id = put_in(&bench, dir, b"value", b"new").unwrap();
    assert_eq!(bench.identity(id).unwrap().epoch, Epoch(3));
    bench.close_and_reopen();
    assert_eq!(of(&bench, "a"), [b"value"]);
    assert_eq!(status_of(&bench, "a").0, 3);
    assert_eq!(status_of(&bench, "b"), b_before);
    bench.sound();
}

#[test]
fn a_global_removal_empties_every_tenant() {
    let mut bench = Bench::new(StoreSettings::default());
    fill(&bench, "a");
    fill(&bench, "b");
    put(&bench, b"k", b"v").unwrap();
    let beside = bench.root().join("beside");
    std::fs::write(&beside, "a stranger beside the managed root").unwrap();
    remove(&bench, &of_tenant("b", 4));
    fill(&bench, "b");
    remove(&bench, &global(5));
    assert_eq!(tree(&bench).len(), 0);
    for name in ["a", "b", "default"] {
        assert_eq!(status_of(&bench, name), (5, "ready", 0, 0), "{name}");
    }
    assert!(beside.exists());
    bench.sound();
    // What is made later is of that epoch from the start.
    fill(&bench, "c");
    assert_eq!(status_of(&bench, "c").0, 5);
    remove(&bench, &of_tenant("a", 6));
    assert_eq!(status_of(&bench, "c").0, 5);
    bench.reopen();
    assert_eq!((status_of(&bench, "a").0, status_of(&bench, "b").0), (6, 5));
    assert_eq!(of(&bench, "c").len(), 6);
    bench.sound();
}

#[test]
fn a_tenant_made_again_keeps_its_epoch() {
    let bench = Bench::new(StoreSettings::default());
    fill(&bench, "a");
    remove(&bench, &of_tenant("a", 3));
    bench.remove_tenant(b"a").unwrap();
    fill(&bench, "a");
    assert_eq!(status_of(&bench, "a").0, 3);
}

/// Nothing admitted before may commit after, whatever it is.
#[test]
fn what_was_admitted_before_a_removal_is_stale() {
    let bench = Bench::new(StoreSettings::default());
    let dir = fill(&bench, "a");
    let sub = bench.child(dir, b"sub").unwrap();
    let mut staged = stage(&bench, dir, b"late", b"admitted before").unwrap();
    let mut moved = stage(&bench, dir, b"moved", b"admitted before").unwrap();
    let mut told = stage(&bench, dir, b"told", b"admitted before").unwrap();
    let mut deep = stage(&bench, sub, b"deep", b"admitted before").unwrap();
    let (edited, _) = bench.begin_edit(bench.child(dir, b"value").unwrap()).unwrap().unwrap();
    let id = bench.child(dir, b"value").unwrap();
    bench.retain(id).unwrap();
    remove(&bench, &of_tenant("a", 1));
    assert_eq!(names_in(&bench.root().join("data/.staging")), [""; 0], "they are given up at once");
    bench.retarget(&moved, dir, b"elsewhere").unwrap();
    // Not even by naming the new epoch: it was not admitted under it.
    told.expect_epoch(Epoch(1));
    for staged in [&mut staged, &mut moved, &mut told, &mut deep] {
        assert_eq!(bench.publish(staged, false).unwrap_err().kind(), Kind::Stale);
        assert_eq!(staged.admitted().unwrap_err().kind(), Kind::Stale);
    }
    assert!(bench.begin_edit(id).unwrap().is_none());
    assert!(bench.open_value(id, None).unwrap().is_none());
    assert!(bench.truncate(id, 0).is_err());
    assert!(bench.rename((dir, b"value"), (dir, b"x"), RenameHow::Replace).is_err());
    assert!(bench.set_pinned(id, true).is_err());
    assert!(stage(&bench, sub, b"x", b"").is_err(), "its directory is gone");
    (&*edited).write_all(b"into nowhere").unwrap();
    bench.end_edit(id, &edited).unwrap();
    bench.release(id, 1);
    drop((staged, moved, told, deep));
    assert_eq!(of(&bench, "a"), [b""; 0]);
    bench.sound();
}

#[test]
fn a_conditional_put_is_refused_once_the_scope_has_moved_on() {
    let bench = Bench::new(StoreSettings::default());
    let dir = fill(&bench, "a");
    remove(&bench, &of_tenant("a", 2));
    let mut old = stage(&bench, dir, b"k", b"work of epoch 0").unwrap();
    old.expect_epoch(Epoch(0));
    assert_eq!(bench.publish(&mut old, false).unwrap_err().kind(), Kind::Stale);
    let mut new = stage(&bench, dir, b"k", b"work of epoch 2").unwrap();
    new.expect_epoch(Epoch(2));
    bench.publish(&mut new, false).unwrap();
    drop(old);
    assert_eq!(of(&bench, "a"), [b"k"]);
}

/// Between the fence and the acknowledgement the scope takes nothing, and others do not notice.
#[test]
fn a_scope_is_closed_until_it_is_opened() {
    let bench = Bench::new(StoreSettings::default());
    let (a, b) = (fill(&bench, "a"), fill(&bench, "b"));
    bench.remove(&of_tenant("a", 1)).unwrap();
    assert_eq!(status_of(&bench, "a").1, "removing");
    assert_eq!(put_in(&bench, a, b"k", b"v").unwrap_err().kind(), Kind::Busy);
    assert_eq!(bench.make_dir(a, b"d", OWNER).unwrap_err().kind(), Kind::Busy);
    assert_eq!(bench.make_symlink(a, b"l", b"t", OWNER).unwrap_err().kind(), Kind::Busy);
    assert_eq!(bench.remove_tenant(b"a").unwrap_err().kind(), Kind::Busy);
    put_in(&bench, b, b"k", b"v").unwrap();
    bench.rename((b, b"k"), (b, b"k2"), RenameHow::Replace).unwrap();
    assert_eq!(status_of(&bench, "b").1, "ready");
    bench.open_scope(&Scope::Tenant(tenant("a")), Generation(1)).unwrap();
    put_in(&bench, a, b"k", b"v").unwrap();
    bench.sound();
}

#[test]
fn a_tenant_made_during_a_global_removal_is_born_closed() {
    let mut bench = Bench::new(StoreSettings::default());
    fill(&bench, "a");
    bench.remove(&global(7)).unwrap();
    let born = bench.make_tenant(b"born", 0o755, 0, 0).unwrap();
    assert_eq!(put_in(&bench, born, b"k", b"v").unwrap_err().kind(), Kind::Busy);
    bench.open_scope(&Scope::Global, Generation(7)).unwrap();
    put_in(&bench, born, b"k", b"v").unwrap();
    assert_eq!(status_of(&bench, "born").0, 7);
    bench.reopen();
    assert_eq!(of(&bench, "born"), [b"k"]);
}

/// A later removal of the scope, or of everything, keeps it closed when an earlier one is done.
#[test]
fn an_earlier_removal_does_not_open_a_scope_for_a_later_one() {
    let bench = Bench::new(StoreSettings::default());
    let a = fill(&bench, "a");
    bench.remove(&of_tenant("a", 1)).unwrap();
    bench.remove(&global(2)).unwrap();
    bench.open_scope(&Scope::Tenant(tenant("a")), Generation(1)).unwrap();
    assert_eq!(put_in(&bench, a, b"k", b"v").unwrap_err().kind(), Kind::Busy);
    bench.open_scope(&Scope::Global, Generation(2)).unwrap();
    put_in(&bench, a, b"k", b"v").unwrap();
    assert_eq!(status_of(&bench, "a").0, 2);
}

/// Whoever caches the namespace hears of it, with every node that it still refers to, before the removal goes on.
#[test]
fn a_removal_waits_until_its_nodes_are_forgotten() {
    let bench = Bench::new(StoreSettings::default());
    let dir = fill(&bench, "a");
    let (sub, value) = (bench.child(dir, b"sub").unwrap(), bench.child(dir, b"value").unwrap());
    bench.retain(sub).unwrap();
    bench.retain(value).unwrap();
    let events = bench.subscribe();
    let (tell, told) = mpsc::channel();
    let removing = std::thread::spawn({
        let store = Arc::clone(&bench);
        move || {
            store.remove(&of_tenant("a", 1)).unwrap();
            tell.send(()).unwrap();
        }
    });
    let Ok(Event::Emptied { directory, name, mut known, forgotten }) = events.recv() else { panic!() };
    assert!(told.try_recv().is_err(), "it goes on before the kernel has forgotten");
    let mut expected = [sub, value];
    known.sort();
    expected.sort();
    assert_eq!((directory, &*name, known), (dir, &b"a"[..], expected.to_vec()));
    assert!(bench.find_key(&tenant("a"), &key(b"value")).unwrap().is_none());
    drop(forgotten);
    told.recv().unwrap();
    removing.join().unwrap();
    bench.release(sub, 1);
    bench.release(value, 1);
    bench.open_scope(&Scope::Tenant(tenant("a")), Generation(1)).unwrap();
    assert!(matches!(events.recv(), Ok(Event::Opened)));
    bench.sound();
}

/// Paths that cannot be proven to be a tenant's, one at a time: what to plant below `data/t/a`, and where.
type Plant = (&'static str, fn(&Path, &Path));

fn plants() -> Vec<Plant> {
    fn shard(top: &Path) -> PathBuf {
        let dir = top.join("0/ab/cd");
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }
    vec![
        ("a file beside the epochs", |top, _| std::fs::write(top.join("notes"), "x").unwrap()),
        ("a directory beside the shards", |top, _| std::fs::create_dir(top.join("0/lost+found")).unwrap()),
        ("a file beside the shards", |top, _| std::fs::write(top.join("0/ab"), "x").unwrap()),
        ("a file between the levels", |top, _| {
            std::fs::write(shard(top).parent().unwrap().join("zz"), "x").unwrap()
        }),
        ("a file that is named like no record", |top, _| {
            std::fs::write(shard(top).join("key"), "x").unwrap()
        }),
        ("a file without metadata", |top, _| {
            std::fs::write(shard(top).join("abcd0000000000000000000000000000"), "x").unwrap()
        }),
        ("a link", |top, outside| {
            std::os::unix::fs::symlink(outside, shard(top).join("abcd0000000000000000000000000000")).unwrap()
        }),
        ("a link to a directory", |top, outside| {
            std::os::unix::fs::symlink(outside.parent().unwrap(), top.join("0/ee")).unwrap()
        }),
        ("another tenant's record", |top, _| {
            let of_b = records(top.ancestors().nth(3).unwrap())
                .into_iter()
                .find(|p| p.to_str().unwrap().contains("/t/b/"))
                .unwrap();
            let name = of_b.file_name().unwrap().to_str().unwrap().to_owned();
            let dir = top.join("0").join(&name[..2]).join(&name[2..4]);
            std::fs::create_dir_all(&dir).unwrap();
            let done = std::process::Command::new("cp").arg("-a").arg(&of_b).arg(dir.join(name)).status();
            assert!(done.unwrap().success());
        }),
        ("a record under another name", |top, _| {
            let store = top.ancestors().nth(3).unwrap();
            let of_a = records(store).into_iter().find(|p| p.to_str().unwrap().contains("/t/a/")).unwrap();
            let to = shard(top).join("abcd0000000000000000000000000000");
            let done = std::process::Command::new("cp").arg("-a").arg(&of_a).arg(to).status();
            assert!(done.unwrap().success());
        }),
    ]
}

#[test]
fn a_tenants_removal_is_refused_where_ownership_is_not_proven() {
    for (what, plant) in plants() {
        let bench = Bench::new(StoreSettings::default());
        fill(&bench, "a");
        fill(&bench, "b");
        bench.prove_ownership(&Scope::Tenant(tenant("a"))).expect(what);
        let outside = bench.dir.path().join("outside");
        std::fs::write(&outside, "x").unwrap();
        plant(&bench.root().join("data/t/a"), &outside);
        let before = tree(&bench);
        let refused = bench.prove_ownership(&Scope::Tenant(tenant("a"))).expect_err(what);
        assert_eq!(refused.kind(), Kind::UnprovenOwnership, "{what}");
        assert!(refused.to_string().contains("data/t/a/"), "{what}: {refused}");
        assert_eq!(tree(&bench), before, "{what}");
        bench.prove_ownership(&Scope::Tenant(tenant("b"))).expect(what);
        // What appears after the proof is kept aside: it is neither deleted nor in the way.
        remove(&bench, &of_tenant("a", 1));
        assert_eq!(names_in(&bench.root().join("data/.quarantine")).len(), 1, "{what}");
        assert_eq!(of(&bench, "a"), [b""; 0], "{what}");
        assert_eq!(of(&bench, "b").len(), 6, "{what}");
        assert_eq!(std::fs::read(&outside).unwrap(), b"x", "{what}");
        bench.sound();
    }
    let bench = Bench::new(StoreSettings::default());
    let unknown = bench.prove_ownership(&Scope::Tenant(tenant("nobody"))).unwrap_err();
    assert_eq!(unknown.kind(), Kind::UnknownTenant);
}

#[test]
fn what_takes_the_place_of_a_proven_record_is_looked_into_again() {
    let bench = Bench::new(StoreSettings::default());
    fill(&bench, "a");
    bench.prove_ownership(&Scope::Tenant(tenant("a"))).unwrap();
    let is_its = |p: &PathBuf| p.to_str().unwrap().contains("/t/a/");
    let proven = records(&bench.root()).into_iter().find(is_its).unwrap();
    // The old inode lives on, so that its number is not used again.
    let _old = std::fs::File::open(&proven).unwrap();
    std::fs::remove_file(&proven).unwrap();
    std::fs::write(&proven, "no record").unwrap();
    remove(&bench, &of_tenant("a", 1));
    let kept = names_in(&bench.root().join("data/.quarantine"));
    assert_eq!(kept.len(), 1);
    assert_eq!(std::fs::read(bench.root().join("data/.quarantine").join(&kept[0])).unwrap(), b"no record");
    bench.sound();
}

#[test]
fn a_logical_removal_hides_now_and_deletes_later() {
    let mut bench = Bench::new(StoreSettings::default());
    fill(&bench, "a");
    let occupied = bench.status().used_bytes;
    remove(&bench, &Pending { mode: Mode::Logical, ..of_tenant("a", 1) });
    assert_eq!(of(&bench, "a"), [b""; 0]);
    assert_eq!(status_of(&bench, "a"), (1, "ready", 0, 0));
    assert_eq!(bench.status().used_bytes, occupied, "it occupies the disk still");
    let trash = bench.root().join("data/.trash");
    assert_eq!(names_in(&trash), ["1"]);
    assert!(bench.collect_trash().unwrap());
    assert_eq!(names_in(&trash), [""; 0]);
    assert_eq!(bench.status().used_bytes, 0);
    assert!(!bench.collect_trash().unwrap());
    // A physical removal that follows takes along what a logical one has left.
    fill(&bench, "a");
    remove(&bench, &Pending { mode: Mode::Logical, ..of_tenant("a", 2) });
    bench.reopen();
    assert_eq!(names_in(&trash), ["2"]);
    assert_eq!((bench.status().used_bytes, bench.status().keys), (occupied, 0));
    remove(&bench, &of_tenant("a", 3));
    assert_eq!(names_in(&trash), [""; 0]);
    assert_eq!(bench.status().used_bytes, 0);
    bench.sound();
}

/// A store that is opened with something pending keeps that scope closed, empty and unscanned, and applies it first.
#[test]
fn a_pending_scope_is_not_recovered() {
    let mut bench = Bench::new(StoreSettings::default());
    let before = {
        fill(&bench, "a");
        fill(&bench, "b");
        tree(&bench)
    };
    let counted = status_of(&bench, "a");
    assert_eq!(counted.2, 4, "three values and a link");
    for pending in [of_tenant("a", 9), global(9)] {
        bench.drop_store();
        bench.store = Some(open_pending(&bench.root(), std::slice::from_ref(&pending)));
        let expected: BTreeMap<_, _> = before
            .clone()
            .into_iter()
            .filter(|((t, _), _)| !pending.scope.includes_tenant(&tenant(t)))
            .collect();
        assert_eq!(tree(&bench), expected);
        let removing = status_of(&bench, "a");
        assert_eq!(removing.1, "removing");
        assert_eq!((removing.2, removing.3), (counted.2, counted.3), "what is not deleted is counted");
        let a = bench.tenant_node(&tenant("a")).unwrap();
        assert_eq!(put_in(&bench, a, b"k", b"v").unwrap_err().kind(), Kind::Busy);
        assert!(!records(&bench.root()).is_empty(), "nothing was deleted yet");
    }
    remove(&bench, &global(9));
    assert_eq!(tree(&bench).len(), 0);
    assert!(records(&bench.root()).is_empty());
    let gone = status_of(&bench, "a");
    assert_eq!((gone.0, gone.1, gone.2, gone.3), (9, "ready", 0, 0));
    bench.sound();
}

pub(super) fn open_pending(root: &Path, pending: &[Pending]) -> Arc<Store> {
    for _ in 0..1_000_000 {
        match StoreRoot::lock_unjudged(root) {
            Err(e) if e.kind() == Kind::Locked => std::thread::yield_now(),
            locked => {
                let settings = StoreSettings::default();
                return Store::open(locked.unwrap(), &settings, pending, &mut |_, _| {}).unwrap();
            }
        }
    }
    panic!("the store stays locked");
}

/// The names of directories say it all: older than the marker is garbage, newer than anything known is a lost ledger.
#[test]
fn epoch_directories_are_judged_by_the_markers() {
    let mut bench = Bench::new(StoreSettings::default());
    fill(&bench, "a");
    let saved = bench.dir.path().join("saved");
    let epoch_0 = bench.root().join("data/t/a/0");
    let copy = |from: &Path, to: &Path| {
        let done = std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap();
        assert!(done.success());
    };
    copy(&epoch_0, &saved);
    remove(&bench, &of_tenant("a", 4));
    bench.drop_store();
    copy(&saved, &epoch_0);
    bench.open();
    assert_eq!(of(&bench, "a"), [b""; 0], "an older epoch came back");
    assert_eq!(names_in(&bench.root().join("data/t/a")), ["4"]);
    bench.collect_trash().unwrap();
    bench.sound();
    bench.drop_store();
    // An old record in the directory of the new epoch is no record of it.
    std::fs::remove_dir(bench.root().join("data/t/a/4")).unwrap();
    copy(&saved, &bench.root().join("data/t/a/4"));
    bench.open();
    assert_eq!(of(&bench, "a"), [b""; 0], "an older record came back");
    bench.drop_store();
    std::fs::create_dir(bench.root().join("data/t/a/5")).unwrap();
    let ledger = || std::fs::read(bench.root().join("ledger.redb")).unwrap();
    let (before, beside) = (ledger(), names_in(&bench.root()));
    let refused = open_store(&bench.root(), &StoreSettings::default()).unwrap_err();
    assert_eq!(refused.kind(), Kind::Corrupt);
    assert!(ledger() == before, "a refused start changed the ledger");
    assert_eq!(names_in(&bench.root()), beside, "a refused start made or took a file");
    assert!(refused.to_string().contains("data/t/a/5"), "{refused}");
    // A removal that nobody knows any more has left this: what it has yet to delete would be its last trace.
    std::fs::remove_dir(bench.root().join("data/t/a/5")).unwrap();
    let forgotten = bench.root().join("data/.trash/6");
    std::fs::create_dir(&forgotten).unwrap();
    std::fs::rename(&saved, forgotten.join("a@4.1")).unwrap();
    let refused = open_store(&bench.root(), &StoreSettings::default()).unwrap_err();
    assert_eq!(refused.kind(), Kind::Corrupt);
    assert!(refused.to_string().contains("data/.trash/6/a@4.1"), "{refused}");
    assert_eq!(names_in(&forgotten), ["a@4.1"], "nothing was deleted");
    assert!(ledger() == before, "a refused start changed the ledger");
}

/// Others find room at once, also where the quota was full of what is being removed.
#[test]
fn a_removal_makes_room_for_others_at_once() {
    let mut settings = StoreSettings::default();
    settings.quota.size_bytes = Some(1 << 20);
    let bench = Bench::new(settings);
    let a = bench.make_tenant(b"a", 0o755, 0, 0).unwrap();
    for n in 0..14_u8 {
        put_in(&bench, a, &[b'k', b'a' + n], &[n; 65536]).unwrap();
    }
    let held = bench.root().join("data/.trash");
    bench.remove(&of_tenant("a", 1)).unwrap();
    assert_eq!(names_in(&held), [""; 0]);
    put(&bench, b"k", &[1; 500_000]).unwrap();
    assert_eq!(bench.counters.evicted_keys(), 0);
    bench.sound();
}

#[test]
fn modes_of_what_is_made_are_private() {
    let bench = Bench::new(StoreSettings::default());
    fill(&bench, "a");
    remove(&bench, &of_tenant("a", 1));
    let mode = |path: &str| bench.root().join(path).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("data/t/a/1"), 0o700);
    assert_eq!(mode("data/.trash"), 0o700);
    assert_eq!(mode(""), 0o700, "the store's own directory keeps everybody else out");
}

/// Nothing is deleted to make room for what a removal must keep: it fails, says so, and can be repeated.
#[test]
fn a_full_quarantine_fails_a_removal_and_loses_nothing() {
    let bench = Bench::new(StoreSettings::default());
    fill(&bench, "a");
    let (quarantine, stranger) = (bench.root().join("data/.quarantine"), bench.root().join("data/t/a/notes"));
    for n in 0..limits::QUARANTINED_RECORDS {
        std::fs::write(quarantine.join(format!("kept.{n}")), "x").unwrap();
    }
    std::fs::write(&stranger, "notes").unwrap();
    let refused = bench.remove(&of_tenant("a", 1)).unwrap_err();
    assert_eq!(refused.kind(), Kind::NotEmpty);
    let says = refused.to_string();
    assert!(says.contains("data/t/a/notes") && says.contains("quarantine is full"), "{says}");
    assert_eq!(std::fs::read(&stranger).unwrap(), b"notes");
    assert_eq!(names_in(&quarantine).len(), limits::QUARANTINED_RECORDS);
    assert_eq!(status_of(&bench, "a").1, "removing");
    assert!(!bench.storage().applied().covers(&of_tenant("a", 1).scope, Generation(1)));
    std::fs::remove_file(quarantine.join("kept.0")).unwrap();
    remove(&bench, &of_tenant("a", 1));
    let kept = names_in(&quarantine).into_iter().find(|name| name.starts_with("a.stranger.")).unwrap();
    assert_eq!(std::fs::read(quarantine.join(kept)).unwrap(), b"notes");
    assert_eq!(status_of(&bench, "a"), (1, "ready", 0, 0));
    bench.sound();
}
