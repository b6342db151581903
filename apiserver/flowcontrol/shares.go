package flowcontrol

import (
	"math"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
)

// seats is what a level has a right to, in seats (KEP-1040).
type seats struct {
	exempt bool
	// nominal is its share of the server, lendable what of it others may have, least the rest;
	// most is what it may have with what it borrows.
	nominal, least, most int
}

// nominalSeats are the levels' shares of all seats of the server.
func nominalSeats(total int, levels map[string]*flowcontrolv1.PriorityLevelConfigurationSpec) map[string]seats {
	all := 0.0
	for _, s := range levels {
		all += float64(sharesOf(s))
	}
	out := make(map[string]seats, len(levels))
	for name, s := range levels {
		n := seats{exempt: s.Type == flowcontrolv1.PriorityLevelEnablementExempt}
		if all > 0 {
			n.nominal = int(math.Ceil(float64(total) * float64(sharesOf(s)) / all))
		}
		lendable, borrow := percentsOf(s)
		n.least = n.nominal - portion(n.nominal, lendable)
		n.most = total
		if borrow != nil {
			n.most = n.nominal + portion(n.nominal, *borrow)
		}
		out[name] = n
	}
	return out
}

func portion(of int, percent int32) int { return int(math.Round(float64(of) * float64(percent) / 100)) }

// The defaults of fields that an object may lack.
const (
	defaultShares = 30
)

func sharesOf(s *flowcontrolv1.PriorityLevelConfigurationSpec) int32 {
	switch {
	case s.Exempt != nil && s.Exempt.NominalConcurrencyShares != nil:
		return *s.Exempt.NominalConcurrencyShares
	case s.Limited != nil && s.Limited.NominalConcurrencyShares != nil:
		return *s.Limited.NominalConcurrencyShares
	case s.Limited != nil:
		return defaultShares
	}
	return 0
}

func percentsOf(s *flowcontrolv1.PriorityLevelConfigurationSpec) (lendable int32, borrow *int32) {
	switch {
	case s.Exempt != nil && s.Exempt.LendablePercent != nil:
		lendable = *s.Exempt.LendablePercent
	case s.Limited != nil:
		if s.Limited.LendablePercent != nil {
			lendable = *s.Limited.LendablePercent
		}
		borrow = s.Limited.BorrowingLimitPercent
	}
	return lendable, borrow
}

// wish is what a level wanted lately.
type wish struct {
	seats
	high, smooth float64
}

// share divides the seats of the server by what levels want: each gets what it needs of its
// own, and what is lent goes to those who want more, in proportion (KEP-1040, "Dynamic
// priority level adjustment").
func share(total int, wishes map[string]wish) map[string]int {
	out := make(map[string]int, len(wishes))
	type claim struct{ least, most, target float64 }
	claims := map[string]claim{}
	left, sum := float64(total), 0.0
	for name, w := range wishes {
		if w.exempt { // it takes what it takes
			out[name] = max(w.least, int(math.Ceil(w.high)))
			left -= float64(out[name])
			continue
		}
		least := max(float64(w.least), min(float64(w.nominal), w.high))
		claims[name] = claim{least, max(float64(w.most), least), max(least, w.smooth)}
		sum += least
	}
	left = max(left, 0)
	if sum >= left {
		for name, c := range claims {
			out[name] = int(math.Round(c.least * left / max(sum, 1)))
		}
		return atLeastOne(out)
	}
	given := func(f float64) (n float64) {
		for _, c := range claims {
			n += min(c.most, max(c.least, f*c.target))
		}
		return n
	}
	low, high := 0.0, 1.0
	for range 64 {
		if given(high) >= left {
			break
		}
		high *= 2 // in the end all have the most they may
	}
	for range 64 {
		if mid := (low + high) / 2; given(mid) < left {
			low = mid
		} else {
			high = mid
		}
	}
	for name, c := range claims {
		out[name] = int(math.Round(min(c.most, max(c.least, high*c.target))))
	}
	return atLeastOne(out)
}

// atLeastOne keeps every level going, be it slowly.
func atLeastOne(all map[string]int) map[string]int {
	for name, n := range all {
		all[name] = max(n, 1)
	}
	return all
}
