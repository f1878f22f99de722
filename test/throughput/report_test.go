package throughput

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func rounds(rates ...float64) (out []Round) {
	for _, rate := range rates {
		out = append(out, Round{
			Pods: 1000, Processors: map[string]float64{"etcd": 400 / rate, "scheduler": 600 / rate},
			Rate: rate, BurstP99: 1 / rate, Longest: 1000 / rate, StreamP99: 0.1,
		})
	}
	return out
}

func TestReport(t *testing.T) {
	refusing := rounds(100, 50, 96)
	refusing[0].Refused, refusing[2].Refused = map[string]int{"fragmented": 11, "error": 1}, map[string]int{"error": 3}
	slow := rounds(100, 100)
	slow[1].Longest = 20.1
	tests := map[string]struct {
		rounds map[string][]Round
		want   []string
	}{
		"all sides": {
			rounds: map[string][]Round{with: refusing, without: rounds(100, 100, 100), idle: rounds(100, 80, 100)},
			want: []string{
				"result: processor-time-500-nodes 1.04 (rounds: 1.00 to 2.00; an extender that decides nothing: 1.00)",
				"result: refused-binds-percent-500-nodes 0.50 goal 0.50 met (rounds: 0.00 to 1.20)",
				"result: longest-wait-500-nodes 20.00 goal 20.00 met (rounds: 10.00 to 20.00; an extender that decides nothing: 12.50)",
				"result: throughput-500-nodes 0.96 goal 0.95 met (rounds: 0.50 to 1.00; an extender that decides nothing: 1.00)",
				"result: burst-p99-500-nodes 1.04 goal 1.20 met (rounds: 1.00 to 2.00; an extender that decides nothing: 1.00)",
				"result: stream-p99-500-nodes 1.00 goal 1.20 met (rounds: 1.00 to 1.00; an extender that decides nothing: 1.00)",
			},
		},
		"no idle one": {
			rounds: map[string][]Round{with: rounds(90), without: rounds(100)},
			want: []string{
				"result: processor-time-500-nodes 1.11 (rounds: 1.11 to 1.11)",
				"result: refused-binds-percent-500-nodes 0.00 goal 0.50 met (rounds: 0.00 to 0.00)",
				"result: longest-wait-500-nodes 11.11 goal 20.00 met (rounds: 11.11 to 11.11)",
				"result: throughput-500-nodes 0.90 goal 0.95 missed (rounds: 0.90 to 0.90)",
				"result: burst-p99-500-nodes 1.11 goal 1.20 met (rounds: 1.11 to 1.11)",
				"result: stream-p99-500-nodes 1.00 goal 1.20 met (rounds: 1.00 to 1.00)",
			},
		},
		"one pod waits too long": {
			rounds: map[string][]Round{with: slow, without: rounds(100, 100)},
			want: []string{
				"result: processor-time-500-nodes 1.00 (rounds: 1.00 to 1.00)",
				"result: refused-binds-percent-500-nodes 0.00 goal 0.50 met (rounds: 0.00 to 0.00)",
				"result: longest-wait-500-nodes 20.10 goal 20.00 missed (rounds: 10.00 to 20.10)",
				"result: throughput-500-nodes 1.00 goal 0.95 met (rounds: 1.00 to 1.00)",
				"result: burst-p99-500-nodes 1.00 goal 1.20 met (rounds: 1.00 to 1.00)",
				"result: stream-p99-500-nodes 1.00 goal 1.20 met (rounds: 1.00 to 1.00)",
			},
		},
		"the extender alone": {
			rounds: map[string][]Round{with: {{Pods: 200, Longest: 31, Refused: map[string]int{"error": 2}}}},
			want: []string{
				"result: refused-binds-percent-500-nodes 1.00 goal 0.50 missed (rounds: 1.00 to 1.00)",
				"result: longest-wait-500-nodes 31.00 (rounds: 31.00 to 31.00)",
			},
		},
		"without the extender": {rounds: map[string][]Round{without: rounds(100), idle: rounds(90)}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for line := range strings.Lines(Report{Sizes: []Comparison{{Nodes: 500, Rounds: tc.rounds}}}.String()) {
				if strings.HasPrefix(line, "result: ") {
					got = append(got, strings.TrimSpace(line))
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReportNamesWhatKubeSchedulerLooksAt(t *testing.T) {
	got := Report{PercentageOfNodesToScore: map[string]string{with: "100", without: "by the number of nodes"}}.String()
	if want := "percentageOfNodesToScore with: 100\npercentageOfNodesToScore without: by the number of nodes\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNewRound(t *testing.T) {
	var burst figures
	for i := range 100 {
		burst.waiting = append(burst.waiting, time.Duration(100-i)*time.Second)
	}
	burst.took = 10 * time.Second
	before := reading{processors: map[string]time.Duration{"etcd": time.Second}, refused: map[string]int{"error": 1, "fragmented": 2, "pinned": 3}}
	after := reading{processors: map[string]time.Duration{"etcd": 2 * time.Second}, refused: map[string]int{"error": 1, "fragmented": 5, "pinned": 4}}
	want := Round{
		Pods: 100, Processors: map[string]float64{"etcd": 10}, Rate: 10, BurstP50: 50, BurstP99: 99, Longest: 100, StreamP50: 50, StreamP99: 99,
		Refused: map[string]int{"fragmented": 3, "pinned": 1},
	}
	got := newRound(burst, burst, before, after)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("round (-want +got):\n%s", diff)
	}
	const text = "10.00 ms of processor time per pod: etcd 10.00; 10 pods/s; waiting p50 50.00 s, p99 99.00 s, longest 100.00 s; " +
		"in the stream p50 50.000 s, p99 99.000 s; Binds refused: 4, fragmented 3, pinned 1"
	if diff := cmp.Diff(text, got.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}

func TestReadRefused(t *testing.T) {
	const metrics = `# TYPE gpumem_extender_decisions_total counter
gpumem_extender_decisions_total{reason="",result="bound",verb="bind"} 50
gpumem_extender_decisions_total{reason="fragmented",result="refused",verb="bind"} 7
gpumem_extender_decisions_total{reason="error",result="refused",verb="bind"} 2
gpumem_extender_decisions_total{reason="error",result="failed",verb="bind"} 1
gpumem_extender_decisions_total{reason="fragmented",result="unfit",verb="filter"} 90
`
	got, err := readRefused(strings.NewReader(metrics))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"fragmented": 7, "error": 3}, got); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	if got, err := readRefused(strings.NewReader("up 1\n")); err == nil {
		t.Errorf("got %v of metrics without decisions, want an error", got)
	}
}

func TestPercentageOfNodesToScore(t *testing.T) {
	for config, want := range map[string]string{
		"profiles: [{schedulerName: a}]":                                                            "by the number of nodes",
		"profiles: [{schedulerName: a, percentageOfNodesToScore: 100}]":                             "100",
		"percentageOfNodesToScore: 30\nprofiles: [{schedulerName: a}]":                              "30",
		"percentageOfNodesToScore: 30\nprofiles: [{schedulerName: a, percentageOfNodesToScore: 5}]": "5",
		"percentageOfNodesToScore: 0":                                                               "by the number of nodes",
	} {
		if got, err := percentageOfNodesToScore([]byte(config)); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", config, got, err, want)
		}
	}
}
