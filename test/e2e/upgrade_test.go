package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/stack"
)

// before01 is what 0.1.0 was, which has no tag.
const before01 = "4f75d6cc9d073882452acd7b8610a863c09b4e79"

// What an upgrade leaves as it was for now: the post-renderer of Helm that holds it back.
var (
	agentsStay    = `/^kind: DaemonSet$/,/^---$/ s/type: RollingUpdate/type: OnDelete/`
	schedulerStay = `/^kind: Deployment$/,/^---$/ s/^spec:$/spec:\n  paused: true/`
)

// The last release is installed, and pods of each kind run on it. Then chart, extender and
// device plugins become those of this checkout, and those of the release again, one before
// the other: no pod is moved, ended or counted for something else, by either version of the
// command, and each mixture places pods and asks for nothing that it may not. After that
// everything is uninstalled while a GPU is cordoned: docs/upgrading.md lists the objects that remain.
func TestUpgradeFromTheLastRelease(t *testing.T) {
	e := setup(t)
	e.ctx = t.Context() // several installations, and go test has a limit of its own
	e.atEnd(e.restore)  // whatever has failed
	u := upgrade{env: e, was: e.lastRelease(), is: suite.stack}
	u.to(u.was, "")
	u.createPods()
	u.check("the release")
	u.to(u.is, agentsStay)
	u.check("the new chart and extender, and the old device plugins")
	u.to(u.is, "")
	u.check("all new")
	if *long {
		u.to(u.was, schedulerStay)
		u.check("on the way back, the new extender and the old device plugins")
		u.to(u.was, "")
		u.check("back again")
		u.to(u.is, "")
		u.check("all new again")
		u.to(u.was, agentsStay)
		u.check("on the way back, the old extender and the new device plugins")
	}
	u.to(u.was, "")
	u.check("back at the release")
	u.to(u.is, schedulerStay)
	u.check("the new chart and device plugins, and the old extender")
	u.to(u.is, "")
	u.check("all new, for good")
	u.uninstallAfterACordon()
}

// restore installs what the other tests find.
func (e *env) restore() {
	if _, err := suite.stack.Install(e.ctx, e.cluster, installed...); err != nil {
		e.Errorf("install the tests' release again: %v", err)
	}
}

// lastRelease builds the last release and loads its images.
func (e *env) lastRelease() *stack.Stack {
	e.Helper()
	cache, err := cluster.DefaultCacheDir()
	if err != nil {
		e.Fatal(err)
	}
	ref, err := lastTag(e.ctx)
	if err != nil {
		e.Fatal(err)
	}
	dir := filepath.Join(cache, "release", ref)
	sources := filepath.Join(dir, "sources")
	if err := archived(e.ctx, ref, sources); err != nil {
		e.Fatal(err)
	}
	log := stack.Progress(e.Output())
	release, err := stack.BuildFrom(e.ctx, sources, filepath.Join(dir, "built"), log)
	if err != nil {
		e.Fatal(err)
	}
	if release.Version() == suite.stack.Version() {
		e.Fatalf("the last release, %s, and this checkout are both of version %s: raise that of the checkout", ref, release.Version())
	}
	if err := release.LoadImages(e.ctx, e.cluster); err != nil {
		e.Fatal(err)
	}
	return release
}

// lastTag returns the tag of the last release before this checkout, or the commit that takes
// its place while there is none.
func lastTag(ctx context.Context) (string, error) {
	text, err := git(ctx, "tag", "--list", "v*", "--merged", "HEAD", "--sort=-version:refname")
	if err != nil {
		return "", err
	}
	tags := slices.DeleteFunc(strings.Fields(text), func(tag string) bool { return tag == "v"+stack.Version })
	return append(tags, before01)[0], nil
}

// archived writes the sources of a commit to a folder, once.
func archived(ctx context.Context, ref, to string) error {
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	if _, err := git(ctx, "cat-file", "-e", ref+"^{commit}"); err != nil {
		return fmt.Errorf("the checkout has no commit %s, the last release, so no upgrade from it can be tried. Is it a shallow clone? git fetch --unshallow --tags\n%w", ref, err)
	}
	part := to + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if err := os.MkdirAll(part, 0o755); err != nil {
		return err
	}
	archive, err := git(ctx, "archive", ref)
	if err != nil {
		return err
	}
	tar := exec.CommandContext(ctx, "tar", "--extract", "--directory", part)
	tar.Stdin = strings.NewReader(archive)
	if output, err := tar.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", tar, err, output)
	}
	return os.Rename(part, to)
}

func git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = "../.."
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, said.Bytes())
	}
	return out.String(), nil
}

// An upgrade is one that is tried.
type upgrade struct {
	*env
	was, is *stack.Stack
	before  map[string]*v1.Pod          // as they were when they had started
	units   map[string]map[string]int64 // allocated, by node and GPU
	tried   int
}

// createPods creates pods of each kind, and notes what they have.
func (u *upgrade) createPods() {
	u.create(u.pod("two-gpus", 4, annotated("gpu-count", "2"), onNode("node1")))
	u.running("two-gpus") // before one that has a GPU alone
	u.create(u.pod("one", 3))
	u.create(u.pod("several", 2, func(pod *v1.Pod) {
		pod.Spec.InitContainers = []v1.Container{sample("init", 3, "-exit-after=1s")}
		pod.Spec.Containers = append(pod.Spec.Containers, sample("second", 1), sample("sidecar", 0))
	}))
	u.create(u.pod("alone", 5, annotated("policy", "exclusive")))
	u.create(u.pod("cores", 2, func(pod *v1.Pod) {
		pod.Spec.Containers[0].Resources.Limits["gpumem.dev/gpu-core"] = *resource.NewQuantity(10, resource.DecimalSI)
	}))
	u.create(u.pod("past-the-scheduler", 1, func(pod *v1.Pod) { pod.Spec.NodeName = "node2" }))
	u.create(u.pod("waits", 90))
	u.before = make(map[string]*v1.Pod)
	for _, name := range []string{"one", "several", "two-gpus", "alone", "cores", "past-the-scheduler"} {
		u.running(name)
		u.agree(name, "main")
		u.before[name] = u.get(name)
	}
	u.units = u.allocatedBy(u.was)
}

// to upgrades or downgrades to a version; heldBack is left as it was.
func (u *upgrade) to(version *stack.Stack, heldBack string) {
	u.Helper()
	args := []string{"upgrade", stack.Release, version.Chart(), "--namespace", stack.Namespace, "--wait", "--timeout", "4m",
		"--values", filepath.Join(version.Chart(), "ci", "demo-values.yaml"), "--set", "devicePlugin.maxUnavailable=100%"}
	for _, value := range append(version.Values(), installed...) {
		if version == u.was && strings.HasPrefix(value, "labelPods=") {
			continue // which it does not know
		}
		args = append(args, "--set", value)
	}
	if heldBack != "" {
		script := filepath.Join(u.TempDir(), "hold-back")
		if err := os.WriteFile(script, []byte("#!/bin/sh\nexec sed '"+heldBack+"'\n"), 0o755); err != nil {
			u.Fatal(err)
		}
		args = append(args, "--post-renderer", script)
	}
	if _, err := version.Helm(u.ctx, u.cluster, args...); err != nil {
		u.Fatal(err)
	}
	agents, scheduler, other := version, version, u.was
	if version == u.was {
		other = u.is
	}
	switch heldBack {
	case agentsStay:
		agents = other
	case schedulerStay:
		scheduler = other
	}
	want := map[string]string{scheduler.Decider(): scheduler.Version(), "gpumem-device-plugin": agents.Version()}
	u.eventually(fmt.Sprintf("the parts run as %v", want), func() (bool, string) {
		got, now := u.parts()
		return got && cmp.Equal(want, now), fmt.Sprint(got, now)
	})
}

// parts returns the versions of the images in gpumem's pods, and whether all of
// them are ready, and none is about to end.
func (u *upgrade) parts() (settled bool, versions map[string]string) {
	pods, err := u.client.CoreV1().Pods(stack.Namespace).List(u.ctx, metav1.ListOptions{})
	if err != nil {
		u.Fatal(err)
	}
	settled, versions = len(pods.Items) == 1+len(u.cluster.Nodes()), make(map[string]string)
	for _, pod := range pods.Items {
		settled = settled && ready(&pod) && pod.DeletionTimestamp == nil
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			name, version, _ := strings.Cut(filepath.Base(c.Image), ":")
			version, _, _ = strings.Cut(version, "-kube")
			switch seen, found := versions[name]; {
			case name == "kube-scheduler":
			case found && seen != version:
				versions[name] = seen + " and " + version
			default:
				versions[name] = version
			}
		}
	}
	return settled, versions
}

// check sees that the pods are what they were, and that another one finds its place.
func (u *upgrade) check(state string) {
	u.Helper()
	for name, before := range u.before {
		after := u.running(name)
		if diff := cmp.Diff(containerIDs(before), containerIDs(after)); diff != "" {
			u.Errorf("%s: containers of pod %s (-before +after):\n%s", state, name, diff)
		}
		if diff := cmp.Diff(u.assigned(before), u.assigned(after)); diff != "" || before.UID != after.UID {
			u.Errorf("%s: GPUs of pod %s (-before +after):\n%s", state, name, diff)
		}
		u.agree(name, "main")
	}
	for _, version := range []*stack.Stack{u.was, u.is} {
		u.eventually(state+": the command of "+version.Version()+" counts what it counted", func() (bool, string) {
			diff := cmp.Diff(u.units, u.allocatedBy(version))
			return diff == "", diff
		})
	}
	u.pending("waits")
	u.tried++
	name := fmt.Sprintf("tried-%d", u.tried)
	u.create(u.pod(name, 2))
	u.running(name)
	u.agree(name, "main")
	u.delete(name, 0)
	u.gone(name)
}

// allocatedBy returns the units that each GPU has given away, as a version's command says.
func (u *upgrade) allocatedBy(version *stack.Stack) map[string]map[string]int64 {
	u.Helper()
	text, err := version.Inspect(u.ctx, u.cluster, "-o", "json")
	if err != nil {
		u.Fatal(err)
	}
	var r report
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		u.Fatalf("kubectl inspect gpumem -o json, of %s: %v\n%s", version.Version(), err, text)
	}
	return booksOf(r)
}

// uninstallAfterACordon sees what an uninstallation leaves, and that the next installation
// goes on with it.
func (u *upgrade) uninstallAfterACordon() {
	u.Helper()
	inspect := func(args ...string) {
		u.Helper()
		if _, err := u.is.Inspect(u.ctx, u.cluster, args...); err != nil {
			u.Error(err)
		}
	}
	inspect("cordon", "node2", "1")
	u.nothingDenied(stack.Namespace, suite.since) // from here on parts outlive their roles
	if _, err := u.is.Helm(u.ctx, u.cluster, "uninstall", stack.Release, "--namespace", stack.Namespace, "--wait"); err != nil {
		u.Fatal(err)
	}
	if _, err := u.is.Kubectl(u.ctx, u.cluster, "wait", "pods", "--namespace", stack.Namespace, "--all", "--for=delete", "--timeout=1m"); err != nil {
		u.Error(err)
	}
	nodes, err := u.client.CoreV1().Nodes().List(u.ctx, metav1.ListOptions{})
	if err != nil {
		u.Fatal(err)
	}
	left := make(map[string][]string)
	for _, node := range nodes.Items {
		for _, key := range slices.Sorted(maps.Keys(node.Annotations)) {
			if strings.HasPrefix(key, "gpumem.dev/") {
				left[node.Name] = append(left[node.Name], "annotation "+key)
			}
		}
		for key := range node.Labels {
			if strings.HasPrefix(key, "gpumem.dev/") {
				left[node.Name] = append(left[node.Name], "label "+key)
			}
		}
		for _, c := range node.Status.Conditions {
			if strings.HasPrefix(string(c.Type), "GPUMemory") {
				left[node.Name] = append(left[node.Name], "condition "+string(c.Type))
			}
		}
	}
	if diff := cmp.Diff(map[string][]string{"node2": {"annotation gpumem.dev/cordon-reasons", "annotation gpumem.dev/cordoned-gpus"}}, left); diff != "" {
		u.Errorf("left on nodes (-want +got):\n%s", diff)
	}
	for name, before := range u.before {
		after := u.get(name)
		if diff := cmp.Diff(containerIDs(before), containerIDs(after)) + cmp.Diff(u.assigned(before), u.assigned(after)); diff != "" {
			u.Errorf("uninstalled: containers and GPUs of pod %s (-before +after):\n%s", name, diff)
		}
	}
	suite.since = time.Now()
	u.restore()
	u.eventually("the next installation counts the pods that run, and heeds the cordon", func() (bool, string) {
		diff := cmp.Diff(u.units, u.books())
		for _, n := range u.inspect().Nodes {
			if n.Name == "node2" && n.GPUs[1].Healthy {
				diff += "GPU 1 of node2 is not cordoned"
			}
		}
		return diff == "", diff
	})
	inspect("uncordon", "node2", "1")
}
