//! What operator and backups act upon alike.

use expect_test::expect;
use understudy_election::Loss;

use crate::case::healthy;

/// Rule 6: past its Lease, and without an acknowledgement of `b`, which it cannot put out of the set.
#[test]
fn a_primary_that_neither_renews_nor_hears_its_whole_set() {
    let case = || healthy(&["a", "b", "c"]).lost_primary(&["b"], Loss::Silent, 1_000);
    case().at(7_999).check(expect![[r#"
        wait until +8000
        PrimaryHealthy: primary a is heard
    "#]]);
    case().at(8_000).check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
        PrimaryCutOff: primary a does not renew its Lease and b has lost it, so it can confirm nothing
    "#]]);
    case().by_backup("b").at(8_000).check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
        PrimaryCutOff: primary a does not renew its Lease and b has lost it, so it can confirm nothing
    "#]]);
}
