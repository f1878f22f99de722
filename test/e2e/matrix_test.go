package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/stack"
)

// A promise is what a level of enforcement means for a program that takes all it can get
// (docs/limits.md).
type promise struct {
	name    string
	level   string // of pods with one GPU
	several string // of pods with two

	limited    bool // a program with its variables is held to its grant
	perProcess bool // each process for itself
	narrowed   bool // a worker that narrows CUDA_VISIBLE_DEVICES is held to it too
	bare       bool // a program without the variables too
	total      bool // CUDA reports the grant as the GPU's total
}

// What a T4 of the simulated driver has for programs, what a context takes of it, and the step
// in which the program greedy takes.
const (
	t4MiB, contextMiB, stepMiB = 14910, 132, 64
	unitMiB                    = 1024
)

// taken returns how far a process comes that is held to a grant, or not.
func taken(grantMiB int64, held bool) int64 {
	if !held {
		grantMiB = t4MiB
	}
	return (grantMiB - contextMiB) / stepMiB * stepMiB
}

// line returns what the program greedy is to say of a GPU.
func (p promise) line(who string, gpu int, grantMiB int64, held bool) string {
	total := int64(t4MiB)
	if p.total {
		total = grantMiB
	}
	return fmt.Sprintf("%s %d: %d of %d MiB", who, gpu, taken(grantMiB, held), total)
}

// refused returns what it is to say of a GPU on which not even a context fits.
func refused(who string, gpu int) string { return fmt.Sprintf("%s %d: 0 of 0 MiB", who, gpu) }

// greedy is a container that takes all the GPU memory it gets.
func greedy(name string, units int64, args ...string) v1.Container {
	c := sample(name, units, append([]string{"-step", fmt.Sprint(stepMiB)}, args...)...)
	c.Image = cluster.GreedyImage
	return c
}

// took is a line of the program greedy.
type took struct {
	Who                    string
	Device                 int
	TotalMiB, AllocatedMiB int64
	Error                  string
}

// took returns the first n lines that a container has printed.
func (e *env) took(pod, container string, n int) (lines []took) {
	e.Helper()
	e.eventually(fmt.Sprintf("container %s of pod %s has printed %d lines", container, pod, n), func() (bool, string) {
		text, err := e.client.CoreV1().Pods(e.namespace).GetLogs(pod, &v1.PodLogOptions{Container: container}).DoRaw(e.ctx)
		if err != nil || strings.Count(string(text), "\n") < n {
			return false, fmt.Sprint(err, string(text), e.events(pod))
		}
		lines = nil
		for line := range strings.Lines(string(text)) {
			var l took
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				e.Fatalf("container %s of pod %s: %q: %v", container, pod, line, err)
			}
			lines = append(lines, l)
		}
		return true, ""
	})
	return lines
}

// cell checks what a container took, and prints it.
func (m *machine) cell(p promise, name, pod, container string, want ...string) {
	m.Helper()
	var got []string
	for _, l := range m.took(pod, container, len(want)) {
		got = append(got, fmt.Sprintf("%s %d: %d of %d MiB", l.Who, l.Device, l.AllocatedMiB, l.TotalMiB))
	}
	m.Logf("%-20s %-26s expected %-48s got %-48s level %s", p.name, name, strings.Join(want, ", "), strings.Join(got, ", "), m.levelOf(pod))
	if diff := cmp.Diff(want, got); diff != "" {
		m.Errorf("%s, %s (-want +got):\n%s", p.name, name, diff)
	}
}

// fraction checks that a framework which takes its fraction of the total that it sees ends
// near its grant, with its context.
func (m *machine) fraction(p promise, name, pod, container string, grantMiB int64) {
	m.Helper()
	l := m.took(pod, container, 1)[0]
	share := float64(l.AllocatedMiB+contextMiB) / float64(grantMiB)
	m.Logf("%-20s %-26s expected 0.90 to 1.00 of %d MiB, got %d of %d MiB, with its context %.3f; level %s",
		p.name, name, grantMiB, l.AllocatedMiB, l.TotalMiB, share, m.levelOf(pod))
	if share < 0.9 || share > 1 {
		m.Errorf("%s, %s: with its context it has %.3f of its grant: %+v", p.name, name, share, l)
	}
}

// finished waits until a pod has ended well.
func (e *env) finished(name string) {
	e.Helper()
	e.eventually("pod "+name+" has ended", func() (bool, string) {
		pod := e.get(name)
		if pod.Status.Phase == v1.PodFailed {
			e.Fatalf("pod %s failed: %s %s %v", name, pod.Status.Reason, pod.Status.Message, e.events(name))
		}
		return pod.Status.Phase == v1.PodSucceeded, fmt.Sprintf("%s; %s; %v", pod.Status.Phase, waitsBecause(pod), e.events(name))
	})
}

// end deletes a pod, and waits until the kubelet has given back what it has. Deleted by force, a pod is
// gone before: what it has by claims is missing to the next one, which the kubelet tries again after a
// minute or more.
func (m *machine) end(name string) {
	m.Helper()
	m.delete(name, 1)
	m.gone(name)
}

func (m *machine) wantLevel(p promise, pod, want string) {
	m.Helper()
	if got := m.levelOf(pod); got != want {
		m.Errorf("%s: pod %s was promised %q, want %q", p.name, pod, got, want)
	}
}

// containers gives a pod these init containers and containers instead of its own.
func containers(initial []v1.Container, main ...v1.Container) func(*v1.Pod) {
	return func(pod *v1.Pod) { pod.Spec.InitContainers, pod.Spec.Containers = initial, main }
}

func once(pod *v1.Pod) { pod.Spec.RestartPolicy = v1.RestartPolicyNever }

// testSeveral: both GPUs, each with a grant; and the workers that such a program starts, one
// for each GPU.
func (m *machine) testSeveral(p promise) {
	m.Helper()
	name := "several-" + p.slug()
	m.create(m.pod(name, 6, onNode(m.node), annotated("gpu-count", "2"), once, containers(
		[]v1.Container{greedy("worker-0", 6, "-narrow", "0"), greedy("worker-1", 6, "-narrow", "1")}, greedy("main", 6))))
	m.finished(name)
	m.wantLevel(p, name, p.several)
	const grant = 3 * unitMiB
	m.cell(p, "two GPUs, worker for 0", name, "worker-0", p.line("one", 0, grant, p.narrowed))
	m.cell(p, "two GPUs, worker for 1", name, "worker-1", p.line("one", 0, grant, p.narrowed))
	m.cell(p, "two GPUs, one process", name, "main", p.line("one", 0, grant, p.limited), p.line("one", 1, grant, p.limited))
	m.end(name)
}

// testSecond: the second GPU, alone with one container at a time.
func (m *machine) testSecond(p promise) {
	m.Helper()
	name := "second-" + p.slug()
	const grant = 3 * unitMiB
	child := refused("child", 0)
	if p.perProcess {
		child = p.line("child", 0, grant, true)
	}
	frameworks := []string{"jax", "pytorch", "paddle", "vllm"}
	initial := []v1.Container{greedy("fork", 3, "-fork"), greedy("bare", 3, "-bare")}
	for _, f := range frameworks {
		initial = append(initial, greedy(f, 3, "-fraction", f))
	}
	m.create(m.pod(name, 3, onNode(m.node), annotated("gpu-uuid", m.gpus.GPUs[1].UUID), once, containers(initial, greedy("main", 3))))
	m.finished(name)
	m.wantLevel(p, name, p.level)
	m.cell(p, "GPU 1, one process", name, "main", p.line("one", 0, grant, p.limited))
	m.cell(p, "GPU 1, forked process", name, "fork", p.line("one", 0, grant, p.limited), child)
	m.cell(p, "GPU 1, variables removed", name, "bare", p.line("one", 0, grant, p.bare))
	for _, f := range frameworks {
		m.fraction(p, "GPU 1, "+f, name, f, grant)
	}
	m.end(name)
}

// testFirst: containers of one pod that share the first GPU, each with its own grant. Where
// nothing limits them, those that run at once take what PyTorch takes, which asks its variable.
func (m *machine) testFirst(p promise) {
	m.Helper()
	name := "first-" + p.slug()
	take := []string{"-hold"}
	if !p.limited {
		take = append(take, "-fraction", "pytorch")
	}
	sidecar := greedy("sidecar", 2, take...)
	sidecar.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
	m.create(m.pod(name, 3, onNode(m.node), annotated("gpu-uuid", m.gpus.GPUs[0].UUID), containers(
		[]v1.Container{greedy("prepare", 2), sidecar}, greedy("main", 3, take...), greedy("other", 2, take...))))
	pod := m.running(name)
	m.wantLevel(p, name, p.level)
	check := func(when string) {
		m.Helper()
		for _, c := range []struct {
			name, container string
			units           int64
		}{{"sidecar", "sidecar", 2}, {"one of two containers", "main", 3}, {"two of two containers", "other", 2}} {
			if p.limited {
				m.cell(p, when+c.name, name, c.container, p.line("one", 0, c.units*unitMiB, true))
			} else {
				m.fraction(p, when+c.name, name, c.container, c.units*unitMiB)
			}
		}
	}
	m.cell(p, "GPU 0, init container", name, "prepare", p.line("one", 0, 2*unitMiB, p.limited))
	check("GPU 0, ")

	// All start again, and at level mps the daemon too, before them.
	before := containerIDs(pod)
	if p.level == "mps" {
		m.kill(stack.MPSStandIn, nil)
	}
	m.kill("greedy", pod)
	m.eventually("the containers of pod "+name+" have started again", func() (bool, string) {
		pod := m.get(name)
		now := containerIDs(pod)
		return ready(pod) && now["sidecar"] != before["sidecar"] && now["main"] != before["main"] && now["other"] != before["other"], fmt.Sprint(now, m.events(name))
	})
	check("restarted, ")
	m.end(name)
}

// nothingIsKept waits until nothing that was kept for containers is kept above them any more.
// NVML then answers that there is no limit: NOT_FOUND, or NOT_SUPPORTED without dmem.
func (m *machine) nothingIsKept(dmem bool) {
	m.Helper()
	program := filepath.Join(m.TempDir(), "limits")
	if out, err := exec.CommandContext(m.ctx, "gcc", "-o", program, filepath.Join("..", "fakenvml", "testdata", "driver.c")).CombinedOutput(); err != nil {
		m.Fatalf("%v\n%s", err, out)
	}
	want := "get 3 0 0 0\n"
	if dmem {
		want = "get 6 0 0 0\n"
	}
	m.eventually("nothing is kept for containers that are gone", func() (bool, string) {
		cmd := exec.CommandContext(m.ctx, program, "limits", cluster.DriverRoot+"/usr/lib64/libnvidia-ml.so.1")
		var script, out bytes.Buffer
		for i := range m.gpus.GPUs {
			fmt.Fprintln(&script, "get", i, simulatedCgroups+m.kubepods())
		}
		cmd.Stdin, cmd.Stdout = &script, &out
		if err := m.cluster.RunOnNode(m.node, cmd); err != nil {
			return false, err.Error()
		}
		return out.String() == strings.Repeat(want, len(m.gpus.GPUs)), out.String()
	})
}

func (p promise) slug() string { return strings.NewReplacer(", ", "-", " ", "-").Replace(p.name) }

// TestEveryLevelLimitsAsPromised: a program that takes all it can get, in real containers, at
// every level and in every way in which containers are started.
func TestEveryLevelLimitsAsPromised(t *testing.T) {
	newMachine(setup(t)).testEveryLevel()
}

func (m *machine) testEveryLevel() {
	m.Helper()
	image, err := m.cluster.GreedyImageFile()
	if err != nil {
		m.Fatal(err)
	}
	if err := m.cluster.LoadImage(m.ctx, image, m.node); err != nil {
		m.Fatal(err)
	}
	m.startRuntime()

	p := promise{name: "advisory", level: "advisory", several: "advisory"}
	m.level(p.level, "")
	m.testSeveral(p)
	m.testSecond(p)
	m.testFirst(p)

	p = promise{name: "mps", level: "mps", several: "advisory", limited: true, perProcess: true}
	stop := m.startMPS()
	m.level(p.level, "")
	m.testSeveral(p)
	m.testSecond(p)
	m.testFirst(p)
	stop()
	m.level("advisory", "")

	p = promise{name: "mps, driver 615", level: "mps", several: "advisory", limited: true, perProcess: true}
	m.updateDriver("615.71.09")
	stop = m.startMPS()
	m.level(p.level, "")
	m.testSeveral(p)
	m.testSecond(p)
	m.testFirst(p)
	stop()
	m.level("advisory", "")

	for _, dmem := range []bool{false, true} {
		p = promise{name: "kernel, misc", level: "kernel", several: "kernel", limited: true, narrowed: true, bare: true, total: true}
		if dmem {
			p.name = "kernel, dmem"
		}
		m.startKernel(dmem)
		m.level(p.level, "")
		m.testSeveral(p)
		m.testSecond(p)
		m.testFirst(p)
		m.nothingIsKept(dmem)
	}
}
