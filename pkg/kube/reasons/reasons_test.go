package reasons

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
	"github.com/gpumem/gpumem/pkg/kube/tabletest"
)

func TestRefusal(t *testing.T) {
	tight := placement.Fit(placementtest.Ask(3), placementtest.Node(placementtest.Inventory(placementtest.Device(0, 2))))
	tests := map[string]struct {
		refusal decide.Refusal
		want    string
	}{
		"a verdict": {
			decide.Refusal{Reason: "TooLarge", Verdict: &tight},
			"needs 3 GiB on one GPU; the largest that qualifies here has 2 GiB: ask for less",
		},
		"another pod that the kubelet could take it for": {
			decide.Refusal{Reason: decide.Confusable, Pod: placement.PodRef{Namespace: "ns", Name: "p"}},
			"waits until the kubelet has admitted pod ns/p, because the kubelet could confuse the two",
		},
		"bound elsewhere":   {decide.Refusal{Reason: decide.Elsewhere, Node: "n"}, "the pod is bound to node n"},
		"assumed elsewhere": {decide.Refusal{Reason: decide.Elsewhere, Node: "n", Assumed: true}, "the outcome of binding the pod to node n is not known yet"},
		"found by others":   {decide.Refusal{Reason: "Withheld", Message: "its kubelet offers none"}, "its kubelet offers none"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Refusal(&tc.refusal); got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
			if got := Error(fmt.Errorf("bind: %w", &tc.refusal)); got != tc.want {
				t.Errorf("as an error: %q, want %q", got, tc.want)
			}
		})
	}
}

func TestErrorsOfTheNode(t *testing.T) {
	verdict := placement.Fit(placementtest.Ask(3), placementtest.Node(placementtest.Inventory(placementtest.Device(0, 2))))
	unfit := &placement.Unfit{Pod: placement.PodRef{Namespace: "ns", Name: "p"}, Verdict: verdict}
	want := "pod ns/p needs 3 GiB on one GPU; the largest that qualifies here has 2 GiB: ask for less"
	if got := Error(unfit); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := Error(errors.New("as it is")); got != "as it is" {
		t.Errorf("another error: %q", got)
	}
}

// A verdict mentions reservations for nominated pods.
func TestAVerdictTellsOfNominatedPods(t *testing.T) {
	leaving := placementtest.Terminating(placementtest.Hold("a", placementtest.Ask(8), 0))
	nominated := placementtest.Hold("n", placementtest.Ask(8, placementtest.Priority(5)))
	n := placementtest.Node(placementtest.Inventory(placementtest.Device(0, 10)), leaving).WithNominated([]placement.Holding{nominated})
	n = decide.Reserved(n, placement.PodRef{UID: "p"}, placementtest.Ask(3), placement.Binpack)
	got := Verdict(placement.Fit(placementtest.Ask(3), n))
	if want := "needs 3 GiB on one GPU; free: GPU0 0 (0 GiB in all); reserved for pods nominated to this node: 1"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// Nodes with the same reason get the same text.
func TestBrief(t *testing.T) {
	on := func(index int) placement.Verdict {
		return placement.Fit(placementtest.Ask(3), placementtest.Node(placementtest.Inventory(placementtest.Device(index, 2))))
	}
	if got, want := Brief(on(0)), "needs 3 GiB on one GPU; no GPU here is as large"; got != want || Brief(on(1)) != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// Each reason has its messages and a row in the docs.
func TestTheTableOfChecks(t *testing.T) {
	table := "| reason | the node does not fit because | in the message | of one GPU, `explain` says |\n|---|---|---|---|\n"
	for r := placement.NoDevices; r <= placement.Fragmented; r++ {
		m := messages[r]
		if r.Doc() == "" || m.detailed == nil || m.brief == "" && !(placement.Verdict{Reason: r}).Unresolvable() || (m.onGPU != "") != r.OfGPU() {
			t.Errorf("%s: want a description, a full message, a brief one if pods that leave help, and one of a GPU if GPUs have the reason", r)
		}
		quote := func(message string) string { return cmp.Or(strings.ReplaceAll("`"+message+"`", "``", ""), "–") }
		table += fmt.Sprintf("| `%s` | %s | %s | %s |\n", r, r.Doc(), quote(m.brief), quote(m.onGPU))
	}
	tabletest.Between(t, "docs/reference.md", "pkg/core/placement/checks.go", table)
}
