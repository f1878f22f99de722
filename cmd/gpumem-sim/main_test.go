package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSeeds(t *testing.T) {
	tests := map[string]struct {
		text string
		want []int64
		bad  bool
	}{
		"one":               {text: "42", want: []int64{42}},
		"a range":           {text: "42-44", want: []int64{42, 43, 44}},
		"nothing":           {text: "", bad: true},
		"backwards":         {text: "44-42", bad: true},
		"no number":         {text: "4x", bad: true},
		"half a range":      {text: "42-", bad: true},
		"far too many":      {text: "0-100000", bad: true},
		"less than nothing": {text: "-1", bad: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := seeds(tc.text)
			if tc.bad != (err != nil) {
				t.Fatalf("error %v, want one: %t", err, tc.bad)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("seeds (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBenchSaysWhatIsWrong(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"no traces":       {[]string{"bench"}, "--traces: want a folder"},
		"an empty folder": {[]string{"bench", "--traces", t.TempDir()}, "there is no openb_pod_list_*.csv"},
		"a policy":        {[]string{"bench", "--traces", "x", "--policies", "luck"}, `"luck" is not known, want some of`},
		"seeds":           {[]string{"bench", "--traces", "x", "--seeds", "all"}, `--seeds: "all": want a number`},
		"churn seeds":     {[]string{"bench", "--traces", "x", "--churn-seeds", "9-1"}, `--churn-seeds: "9-1": want a number`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := run(context.Background(), tc.args, io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}
