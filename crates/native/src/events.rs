//! What happens around the machine, as far as it matters for commits.

use mobifs_daemon::EventTarget;
use mobifs_steered::Directory;
use mobifs_volume::BatterySource;

use crate::steering::Steering;

impl EventTarget for Steering {
    fn user_event(&self) {
        self.user_acted();
    }

    fn user_left(&self) {
        self.user_has_left();
    }

    fn set_battery_low(&self, source: BatterySource, is_low: bool) {
        self.battery_changed(source, is_low);
    }

    fn set_screen(&self, is_on: bool) {
        // An error is in the log.
        let _logged = self.screen_switched(is_on);
    }

    fn power_goes(&self) {
        self.power_is_going();
    }

    fn falls_asleep(&self) {
        if let Err(error) = Directory::from_environment().note_sleep() {
            tracing::warn!(
                %error,
                "supervisors of programs cannot be told that the machine is about to sleep: it may fail to"
            );
        }
    }

    fn is_awake(&self) {
        Directory::from_environment().end_sleep();
    }

    fn flush_under_pressure(&self) {
        self.memory_is_short();
    }
}
