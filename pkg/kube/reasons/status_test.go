package reasons

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// said has the results of a status's methods and its texts.
type said struct {
	TakesPods, OnlyCordoned, Advertised bool
	Causes, String                      string
}

func TestStatus(t *testing.T) {
	for name, tc := range map[string]struct {
		status gpu.Status
		want   said
	}{
		"the zero value": {gpu.Status{}, said{TakesPods: true, Advertised: true, String: "healthy"}},
		"cordoned":       {gpu.Status{Cordoned: true}, said{OnlyCordoned: true, Advertised: true, Causes: "cordoned", String: "cordoned"}},
		"unhealthy":      {gpu.Unhealthy("XID 79"), said{Causes: "XID 79", String: "unhealthy (XID 79)"}},
		"for no reason":  {gpu.Unhealthy(""), said{Causes: "no reason given", String: "unhealthy (no reason given)"}},
		"and cordoned": {
			gpu.Status{Unhealthy: true, Cordoned: true, Reason: "XID 79"},
			said{Causes: "XID 79; cordoned", String: "unhealthy (XID 79; cordoned)"},
		},
		"by a driver of many words": {gpu.Unhealthy("XID 79; cordoned"), said{Causes: "XID 79; cordoned", String: "unhealthy (XID 79; cordoned)"}},
		"by a driver of few":        {gpu.Unhealthy("cordoned"), said{Causes: "cordoned", String: "unhealthy (cordoned)"}},
		"its plugin is stopped": {
			gpu.Status{Stopped: true},
			said{Causes: "its device plugin is stopped or being replaced", String: "unhealthy (its device plugin is stopped or being replaced)"},
		},
	} {
		s := tc.status
		got := said{s.TakesPods(), s.OnlyCordoned(), gpu.Device{Status: s}.Advertised(), Causes(s), Status(s)}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
