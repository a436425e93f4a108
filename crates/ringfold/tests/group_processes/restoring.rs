//! Ranks that are killed while results are put back.

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
                    rank.tell(format!("endless-restored {op} {count}"));
                }
                ranks.iter_mut().for_each(Rank::has_begun);
                // Whoever is killed is somewhere else each time.
                std::thread::sleep(Duration::from_micros(20_000 + 1234 * (round + 7 * world) as u64));
                let mut victim = ranks.pop().unwrap();
                victim.kill9().unwrap();
                let told: Vec<String> = ranks.iter_mut().map(|rank| rank.answer().told()).collect();
                assert!(told.iter().all(|text| *text == told[0]), "{media} {op} {count}: {told:?}");
                assert!(told[0].contains("back=true") && told[0].contains("died"), "{}", told[0]);
                ranks.into_iter().for_each(Rank::ends);
            }
        }
    }
}
