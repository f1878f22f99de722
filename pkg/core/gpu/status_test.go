package gpu

import "testing"

func TestStatus(t *testing.T) {
	for i := range 8 {
		s := Status{Unhealthy: i&1 > 0, Cordoned: i&2 > 0, Stopped: i&4 > 0}
		if s.TakesPods() != (i == 0) || s.OnlyCordoned() != (i == 2) {
			t.Errorf("%+v takes pods: %t, is only cordoned: %t", s, s.TakesPods(), s.OnlyCordoned())
		}
	}
}
