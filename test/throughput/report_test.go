package throughput

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func rounds(rates ...float64) (out []Round) {
	for _, rate := range rates {
		out = append(out, Round{
			Pods: 1000, Processors: map[string]float64{"etcd": 400 / rate, "scheduler": 600 / rate}, MemoryMiB: map[string]float64{"scheduler": 100},
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
	large := rounds(100)
	large[0].MemoryMiB["extender"] = 60
	for _, tc := range []struct {
		name   string
		nodes  int
		rounds map[string][]Round
		want   []string
	}{
		{
			name: "the plugin", nodes: 500,
			rounds: map[string][]Round{plugin: refusing, plain: rounds(100, 100, 100)},
			want: []string{
				"result: plugin-processor-time-500-nodes 1.04 goal 1.06 met (rounds: 1.00 to 2.00)",
				"result: plugin-memory-500-nodes 1.00 goal 1.50 met (rounds: 1.00 to 1.00)",
				"result: plugin-throughput-500-nodes 0.96 goal 0.95 met (rounds: 0.50 to 1.00)",
				"result: plugin-burst-p99-500-nodes 1.04 goal 1.20 met (rounds: 1.00 to 2.00)",
				"result: plugin-stream-p99-500-nodes 1.00 goal 1.20 met (rounds: 1.00 to 1.00)",
				"result: plugin-refused-binds-percent-500-nodes 0.50 goal 0.50 met (rounds: 0.00 to 1.20)",
				"result: plugin-longest-wait-500-nodes 20.00 goal 20.00 met (rounds: 10.00 to 20.00)",
			},
		},
		{
			name: "beside a control: what is noisy may be as bad", nodes: 5000,
			rounds: map[string][]Round{plugin: rounds(90), plain: rounds(100), off: rounds(88)},
			want: []string{
				"result: off-processor-time-5000-nodes 1.14 (rounds: 1.14 to 1.14)",
				"result: plugin-processor-time-5000-nodes 1.11 goal 1.10 missed (rounds: 1.11 to 1.11; control: 1.14 to 1.14)",
				"result: off-memory-5000-nodes 1.00 (rounds: 1.00 to 1.00)",
				"result: plugin-memory-5000-nodes 1.00 goal 1.50 met (rounds: 1.00 to 1.00; control: 1.00 to 1.00)",
				"result: off-throughput-5000-nodes 0.88 (rounds: 0.88 to 0.88)",
				"result: plugin-throughput-5000-nodes 0.90 goal 0.95 met (rounds: 0.90 to 0.90; control: 0.88 to 0.88)",
				"result: off-burst-p99-5000-nodes 1.14 (rounds: 1.14 to 1.14)",
				"result: plugin-burst-p99-5000-nodes 1.11 goal 1.20 met (rounds: 1.11 to 1.11; control: 1.14 to 1.14)",
				"result: off-stream-p99-5000-nodes 1.00 (rounds: 1.00 to 1.00)",
				"result: plugin-stream-p99-5000-nodes 1.00 goal 1.20 met (rounds: 1.00 to 1.00; control: 1.00 to 1.00)",
				"result: plugin-refused-binds-percent-5000-nodes 0.00 goal 0.50 met (rounds: 0.00 to 0.00)",
				"result: plugin-longest-wait-5000-nodes 11.11 goal 20.00 met (rounds: 11.11 to 11.11)",
			},
		},
		{
			name: "the extender", nodes: 500,
			rounds: map[string][]Round{extended: slow, sampled: rounds(80, 70), plain: rounds(100, 100)},
			want: []string{
				"result: extender-processor-time-500-nodes 1.00 (rounds: 1.00 to 1.00)",
				"result: sampled-processor-time-500-nodes 1.34 goal 1.30 missed (rounds: 1.25 to 1.43)",
				"result: extender-memory-500-nodes 1.00 (rounds: 1.00 to 1.00)",
				"result: sampled-memory-500-nodes 1.00 (rounds: 1.00 to 1.00)",
				"result: extender-throughput-500-nodes 1.00 (rounds: 1.00 to 1.00)",
				"result: sampled-throughput-500-nodes 0.75 (rounds: 0.70 to 0.80)",
				"result: extender-burst-p99-500-nodes 1.00 (rounds: 1.00 to 1.00)",
				"result: sampled-burst-p99-500-nodes 1.34 (rounds: 1.25 to 1.43)",
				"result: extender-stream-p99-500-nodes 1.00 (rounds: 1.00 to 1.00)",
				"result: sampled-stream-p99-500-nodes 1.00 (rounds: 1.00 to 1.00)",
				"result: extender-refused-binds-percent-500-nodes 0.00 goal 0.50 met (rounds: 0.00 to 0.00)",
				"result: extender-longest-wait-500-nodes 20.10 goal 20.00 missed (rounds: 10.00 to 20.10)",
			},
		},
		{
			name: "one side alone, and a flood", nodes: 500,
			rounds: map[string][]Round{extended: {{Pods: 200, Longest: 31, Refused: map[string]int{"error": 2}, Processors: map[string]float64{"etcd": 8}}}, flooded: large},
			want: []string{
				"result: extender-refused-binds-percent-500-nodes 1.00 goal 0.50 missed (rounds: 1.00 to 1.00)",
				"result: extender-longest-wait-500-nodes 31.00 (rounds: 31.00 to 31.00)",
				"result: flooded-processor-time-beside-none-500-nodes 1.25 goal 1.30 met (rounds: 1.25 to 1.25)",
				"result: flooded-memory-mib-500-nodes 60.00 goal 200.00 met (rounds: 60.00 to 60.00)",
			},
		},
		{name: "nothing to compare", nodes: 500, rounds: map[string][]Round{plain: rounds(100)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for line := range strings.Lines(Report{Sizes: []Comparison{{Nodes: tc.nodes, Rounds: tc.rounds}}}.String()) {
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

// Every side is measured with the configuration that it is named for.
func TestSides(t *testing.T) {
	for _, s := range UsualSides() {
		if !slices.Contains(Sides(), s) {
			t.Errorf("there is no side %s", s)
		}
	}
	b := &bench{Config: Config{Sides: []string{sampled, plain}}}
	var got []string
	for _, s := range b.measured() {
		got = append(got, s.name)
	}
	if diff := cmp.Diff([]string{plain, sampled}, got); diff != "" {
		t.Errorf("measured (-want +got):\n%s", diff)
	}
}

func TestReportNamesWhatKubeSchedulerLooksAt(t *testing.T) {
	got := Report{PercentageOfNodesToScore: map[string]string{extended: "100", plain: "by the number of nodes"}}.String()
	if want := "percentageOfNodesToScore extender: 100\npercentageOfNodesToScore plain: by the number of nodes\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNewRound(t *testing.T) {
	var burst figures
	for i := range 100 {
		burst.waiting = append(burst.waiting, time.Duration(100-i)*time.Second)
	}
	burst.took = 10 * time.Second
	before := reading{processors: map[string]time.Duration{"etcd": time.Second}, refused: map[string]int{"error": 1, "fragmented": 2, "pinned": 3}, requests: map[string]int{"POST pods": 7, "LIST pods": 1}}
	after := reading{processors: map[string]time.Duration{"etcd": 2 * time.Second}, refused: map[string]int{"error": 1, "fragmented": 5, "pinned": 4}, requests: map[string]int{"POST pods": 107, "LIST pods": 1, "POST pods/binding": 150}}
	want := Round{
		Pods: 100, Processors: map[string]float64{"etcd": 10}, MemoryMiB: map[string]float64{}, Rate: 10, BurstP50: 50, BurstP99: 99, Longest: 100, StreamP50: 50, StreamP99: 99,
		Refused: map[string]int{"fragmented": 3, "pinned": 1}, Requests: map[string]float64{"POST pods": 1, "POST pods/binding": 1.5},
	}
	got := newRound(burst, burst, before, after)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("round (-want +got):\n%s", diff)
	}
	const text = "10.00 ms of processor time per pod: etcd 10.00; 10 pods/s; waiting p50 50.00 s, p99 99.00 s, longest 100.00 s; " +
		"in the stream p50 50.000 s, p99 99.000 s; Binds refused: 4, fragmented 3, pinned 1; requests per pod: POST pods 1.00, POST pods/binding 1.50"
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

func TestReadRequests(t *testing.T) {
	const metrics = `# TYPE apiserver_request_total counter
apiserver_request_total{code="201",resource="pods",subresource="binding",verb="POST"} 5
apiserver_request_total{code="409",resource="pods",subresource="binding",verb="POST"} 2
apiserver_request_total{code="200",resource="pods",subresource="",verb="LIST"} 3
apiserver_request_total{code="200",resource="pods",subresource="",verb="WATCH"} 9
apiserver_request_total{code="200",resource="",subresource="/readyz",verb="GET"} 4
`
	got, err := readRequests(strings.NewReader(metrics))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"POST pods/binding": 7, "LIST pods": 3}, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestTooLate(t *testing.T) {
	start := time.Unix(0, 0)
	for name, tc := range map[string]struct {
		until time.Time
		want  bool
	}{
		"no limit":         {time.Time{}, false},
		"time for another": {start.Add(4 * time.Minute), false},
		"not for all":      {start.Add(4*time.Minute - 1), true},
	} {
		if got := tooLate(start, start.Add(2*time.Minute), tc.until); got != tc.want {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
}
