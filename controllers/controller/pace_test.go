package controller

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestPace(t *testing.T) {
	c := clocktesting.NewFakePassiveClock(time.Now())
	p := NewPace[string](c)
	for range 3 {
		if w := p.Wait("small", 99); w != 0 {
			t.Errorf("a small object waits %s", w)
		}
	}
	if w := p.Wait("large", 200); w != 0 {
		t.Errorf("the first pass waits %s", w)
	}
	if w := p.Wait("large", 200); w != 100*time.Millisecond {
		t.Errorf("the second waits %s", w)
	}
	if w := p.Wait("large", 100000); w != mostPace {
		t.Errorf("a huge one waits %s", w)
	}
	c.SetTime(c.Now().Add(100 * time.Millisecond))
	if w := p.Wait("large", 200); w != 0 {
		t.Errorf("it still waits %s", w)
	}
}
