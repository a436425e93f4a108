//! Ranks killed in groups that restore.

use super::rank_process::{MEDIA, Rank, group};
use std::time::Duration;

#[test]
fn survivors_of_a_kill_agree_on_the_outcome_and_restore_the_rest() {
    for media in MEDIA {
        for (round, (op, count)) in
            [("reduce", 1), ("reduce", 300_000), ("broadcast", 100_000), ("reduce", 5000)].iter().enumerate()
        {
            for world in [2, 3, 4] {
                let mut ranks = group(world, media, "restoring=1");
                for rank in &mut ranks {
                    rank.send_command(format!("endless-restored {op} {count}"));
                }
                ranks.iter_mut().for_each(Rank::wait_begun);
                // The rank is killed at a different point each time.
                std::thread::sleep(Duration::from_micros(20_000 + 1234 * (round + 7 * world) as u64));
                let mut victim = ranks.pop().unwrap();
                victim.kill9().unwrap();
                let replies: Vec<String> = ranks.iter_mut().map(|rank| rank.answer().ok()).collect();
                assert!(replies.iter().all(|text| *text == replies[0]), "{media} {op} {count}: {replies:?}");
                assert!(
                    replies[0].contains("restored=true") && replies[0].contains("died"),
                    "{}",
                    replies[0]
                );
                ranks.into_iter().for_each(Rank::exit);
            }
        }
    }
}
