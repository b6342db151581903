package podautoscaler

import (
	"fmt"
	"time"
)

// Settings are what upstream's flags --horizontal-pod-autoscaler-* say.
type Settings struct {
	// SyncPeriod is how often each autoscaler is looked at.
	SyncPeriod time.Duration
	// DownscaleStabilization is how long a recommendation keeps the target from shrinking
	// below it, where spec.behavior does not say.
	DownscaleStabilization time.Duration
	// Tolerance is how far from 1 the ratio of usage and target must be for a change.
	Tolerance float64
	// CPUInitialization is how long after a pod's start samples of its CPU may be left out,
	// InitialReadiness how long a change of its readiness counts as the first.
	CPUInitialization, InitialReadiness time.Duration
}

// DefaultSettings are upstream's.
func DefaultSettings() Settings {
	return Settings{
		SyncPeriod:             15 * time.Second,
		DownscaleStabilization: 5 * time.Minute,
		Tolerance:              0.1,
		CPUInitialization:      5 * time.Minute,
		InitialReadiness:       30 * time.Second,
	}
}

// Validate names the setting by its flag.
func (s Settings) Validate() error {
	if s.SyncPeriod <= 0 {
		return fmt.Errorf("--horizontal-pod-autoscaler-sync-period: %s is not a period; give a positive duration such as 15s", s.SyncPeriod)
	}
	if s.Tolerance < 0 {
		return fmt.Errorf("--horizontal-pod-autoscaler-tolerance: %v is negative; 0.1 is a tenth", s.Tolerance)
	}
	return nil
}
