package gpu

import "testing"

func TestVersionAtLeast(t *testing.T) {
	for _, tc := range []struct {
		has, want Version
		atLeast   bool
	}{
		{"550.54.15", "550.54.15", true},
		{"550.54.15", "550.54.14", true},
		{"550.54.15", "550.54.16", false},
		{"550.54.15", "550", true},
		{"550.54.15", "551", false},
		{"550", "550.54", false},
		{"550", "550.0.0", true},
		{"550.0.1", "550.0.2", false},
		{"1000", "999.9", true}, // as numbers
		{"535.104.05", "535.104.5", true},
		{"615.43-beta", "615", true},
		{"615-beta", "1", false},
		{" 615 ", "615", true},
		{"", "1", false},
		{"new", "1", false},
		{"new", "0", false},
		{"-1", "0", false},
		{"", "", true},
		{"550", "", true},
	} {
		if got := tc.has.AtLeast(tc.want); got != tc.atLeast {
			t.Errorf("%q is at least %q: %t, want %t", tc.has, tc.want, got, tc.atLeast)
		}
	}
}
