//! What a configuration says that holds from the start of a mount to its end.

use super::Config;

/// What only the next mount takes over, key by key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastingSettings(Vec<(&'static str, String)>);

impl LastingSettings {
    /// Those of a mount.
    #[must_use]
    pub fn of_mount(config: &Config) -> Self {
        let history = format!("{:?}", config.history);
        let own = [
            ("journal_bytes", format!("{:?}", config.journal_bytes)),
            (
                "direct_write_max_bytes",
                format!("{:?}", config.direct_write_max_bytes),
            ),
            ("apply_idle_ms", format!("{:?}", config.apply_idle)),
            (
                "preallocate_database_bytes",
                config.preallocation.database_bytes.to_string(),
            ),
            (
                "preallocate_large_bytes",
                config.preallocation.large_bytes.to_string(),
            ),
            ("objects_max", config.objects_max.to_string()),
            ("allow_durable", config.allow_durable.to_string()),
        ];
        let others = Self::of_steered(config).0;
        Self(
            own.into_iter()
                .chain(others)
                .chain([("[history]", history)])
                .collect(),
        )
    }

    /// Those of a steered filesystem.
    #[must_use]
    pub fn of_steered(config: &Config) -> Self {
        let events = &config.events;
        Self(vec![
            (
                "user_events",
                format!("{:?} {}", events.input, events.bursts),
            ),
            ("memory_pressure", format!("{:?}", events.memory_pressure)),
            ("screens", format!("{:?}", events.connectors)),
            ("system_bus", events.system_bus.to_string()),
            (
                "battery_low_percent",
                events.battery_low_percent.to_string(),
            ),
            ("status_group", format!("{:?}", config.status_group)),
        ])
    }

    /// The keys that have another value in `wanted`, which is of the same kind.
    #[must_use]
    pub fn different_in(&self, wanted: &Self) -> Vec<&'static str> {
        let pairs = self.0.iter().zip(&wanted.0);
        let different = pairs.filter(|(here, there)| here != there);
        different.map(|((key, _), _)| *key).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_waits_for_the_next_mount_is_known_by_its_key() {
        let parse = |text: &str| Config::parse(text, Path::new("test")).unwrap();
        let before = LastingSettings::of_mount(&parse(""));
        let steered = LastingSettings::of_steered(&parse(""));
        for (key, text) in [
            ("journal_bytes", "journal_bytes = \"32MiB\""),
            ("direct_write_max_bytes", "direct_write_max_bytes = 0"),
            ("apply_idle_ms", "apply_idle_ms = 7"),
            (
                "preallocate_database_bytes",
                "preallocate_database_bytes = 0",
            ),
            ("preallocate_large_bytes", "preallocate_large_bytes = 0"),
            ("objects_max", "objects_max = 77"),
            ("allow_durable", "allow_durable = false"),
            ("user_events", "user_events = \"bursts\""),
            ("memory_pressure", "memory_pressure = false"),
            ("screens", "screens = false"),
            ("system_bus", "system_bus = false"),
            ("battery_low_percent", "battery_low_percent = 3"),
            ("status_group", "status_group = \"wheel\""),
            ("[history]", "[history]\nkeep_count = 3"),
        ] {
            let wanted = parse(text);
            let different = before.different_in(&LastingSettings::of_mount(&wanted));
            assert_eq!(different, [key]);
            let different = steered.different_in(&LastingSettings::of_steered(&wanted));
            assert!(different.is_empty() || different == [key], "{different:?}");
        }
        let at_once =
            "memory_budget_bytes = \"8MiB\"\nscheduler = \"fifo\"\n[defaults]\nage_max_ms = 7000";
        let wanted = LastingSettings::of_mount(&parse(at_once));
        assert_eq!(before.different_in(&wanted), [] as [&str; 0]);
    }
}
