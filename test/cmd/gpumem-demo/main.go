// Command gpumem-demo shows gpumem at work on a real cluster on this machine,
// with simulated GPUs: three pods of 3 GiB share one GPU, and a pod that no GPU has enough free for
// gets one when defrag has moved another.
//
//	gpumem-demo          start, show, and take all of it away
//	gpumem-demo --keep   leave it up, and say how to use it and how to end it
//	gpumem-demo --down   end one that was left up
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/cmd/internal/command"
	"github.com/gpumem/gpumem/test/cmd/internal/demo"
	"github.com/gpumem/gpumem/test/fakenvml"
	"github.com/gpumem/gpumem/test/progress"
	"github.com/gpumem/gpumem/test/stack"
)

const (
	name   = "demo"
	gpuMem = v1.ResourceName("gpumem.dev/gpu-mem")
)

// uses are what the programs of the demo's pods seem to use of their GPU: one well, one less than
// it was allocated, and one without working.
var uses = []fakenvml.Process{{UsedMiB: 2560, SMUtil: 46}, {UsedMiB: 1100, SMUtil: 17}, {UsedMiB: 2400}}

func main() {
	command.Main("gpumem-demo", run)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 2 && args[0] == "forward" {
		return cluster.Forward(ctx, args[1])
	}
	flags := flag.NewFlagSet("gpumem-demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	keep := flags.Bool("keep", false, "leave the cluster up")
	down := flags.Bool("down", false, "end a cluster that was left up")
	since := flags.Int64("since", time.Now().Unix(), "when the demo began, in seconds since 1970: the zero of the clock")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := cluster.DefaultStateDir(name)
	if err != nil {
		return err
	}
	if *down {
		return end(ctx, dir, stdout)
	}
	if err := cluster.CheckHost(); err != nil {
		return fmt.Errorf("this machine cannot run the demo: %w", err)
	}
	// What somebody has put there is not taken away unasked.
	if _, err := cluster.Attach(dir); err == nil {
		return errors.New("a demo is up: \"make demo-down\" ends it")
	}
	log := progress.NewWriter(stderr, time.Unix(*since, 0))
	go log.Heartbeat(ctx)
	d := demonstration{stdout: stdout, progress: log, steps: progress.Steps{Out: log, Total: demo.Steps, Done: 1}}
	return d.run(ctx, *keep)
}

// end ends a demo that was left up, and says whether there was one.
func end(ctx context.Context, dir string, stdout io.Writer) error {
	_, err := os.Stat(dir)
	none := errors.Is(err, fs.ErrNotExist)
	if err := cluster.Remove(ctx, dir); err != nil {
		return err
	}
	if none {
		fmt.Fprintln(stdout, "No demo is up.")
	} else {
		fmt.Fprintln(stdout, "The demo is gone.")
	}
	return nil
}

type demonstration struct {
	stdout   io.Writer
	progress io.Writer
	steps    progress.Steps
	nodes    []cluster.Node
	cluster  *cluster.Cluster
	stack    *stack.Stack
}

func (d *demonstration) run(ctx context.Context, keep bool) (err error) {
	needed, missing := cluster.HostPackages()
	defer func() { err = errors.Join(err, d.left(keep, missing)) }()
	if len(missing) > 0 {
		fmt.Fprintf(d.progress, "The cluster needs the Debian packages %s. The next step installs these: %s.\n", strings.Join(needed, " "), strings.Join(missing, " "))
	}
	advice, err := cluster.DownloadAdvice()
	if err != nil {
		return err
	}
	if advice != "" {
		fmt.Fprintf(d.stdout, "\n%s\n", advice)
	}
	if advice != "" || os.Getenv("GPUMEM_KUBERNETES") == "" {
		d.steps.Next("Build Kubernetes, etcd, containerd and Helm (4 min the first time)")
	} else {
		d.steps.Next("Build etcd, containerd and Helm (2 min the first time)")
	}
	if err := cluster.Build(ctx, cluster.Config{Log: d.progress}); err != nil {
		return err
	}
	d.steps.Next("Build gpumem (1 min the first time)")
	if d.stack, err = stack.Build(ctx, name, d.progress); err != nil {
		return err
	}

	d.steps.Next("Start a Kubernetes cluster of two nodes")
	if d.nodes, err = stack.TwoNodes(); err != nil {
		return err
	}
	config := cluster.Config{Name: name, Log: d.progress, Nodes: d.nodes}
	if keep {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		config.Forwarder = []string{self, "forward"}
	}
	if d.cluster, err = cluster.Start(ctx, config); err != nil {
		return err
	}
	defer func() {
		if keep && err == nil {
			return
		}
		d.steps.Next("Remove the cluster")
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, d.cluster.Stop(ctx))
	}()

	d.steps.Next("Install the chart with Helm")
	if err := d.stack.LoadDefaultImages(ctx, d.cluster); err != nil {
		return err
	}
	if _, err := d.stack.Install(ctx, d.cluster, "scheduler.replicas=2", // as many as the chart has by itself
		"devicePlugin.extraArgs={--probe-interval=2s}"); err != nil { // what pods use is seen soon
		return err
	}
	if err := d.show(ctx); err != nil {
		return err
	}
	if keep {
		d.steps.Next("Leave the cluster up")
		return d.explain(ctx)
	}
	return nil
}

// left prints what the demo leaves on the machine, and how to remove it. installed are the packages
// that the demo has installed.
func (d *demonstration) left(keep bool, installed []string) error {
	cache, err := cluster.DefaultCacheDir()
	if err != nil {
		return err
	}
	first := ""
	if keep {
		first = "    # after \"make demo-down\""
	}
	fmt.Fprintf(d.stdout, `
The demo leaves on this machine:
  bin/ in this checkout    make clean
  %s    rm -r %s%s
  Go's caches    go clean -cache -modcache    # for all your Go projects
`, cache, cache, first)
	if len(installed) > 0 {
		fmt.Fprintf(d.stdout, "  packages that it installed    apt-get remove %s\n", strings.Join(installed, " "))
	}
	return nil
}

// show runs the sample and prints what users look at.
func (d *demonstration) show(ctx context.Context) error {
	if err := d.waitOffered(ctx); err != nil {
		return err
	}
	d.steps.Next("Apply a StatefulSet: three replicas of 3 GiB of GPU memory each")
	if _, err := d.stack.Kubectl(ctx, d.cluster, "apply", "-f", d.stack.Sample("statefulset.yaml")); err != nil {
		return err
	}
	pods, err := d.waitRunning(ctx, 3)
	if err != nil {
		return err
	}
	system, err := d.stack.Kubectl(ctx, d.cluster, "get", "pods", "--all-namespaces", "--output=wide")
	if err != nil {
		return err
	}
	d.print("kubectl get pods --all-namespaces -o wide", system)
	for _, args := range [][]string{{}, {"--details"}} {
		if err := d.inspect(ctx, args...); err != nil {
			return err
		}
	}
	d.steps.Next("Let the simulated driver report that the pods' programs use the GPU")
	table, err := d.use(ctx)
	if err != nil {
		return err
	}
	d.print("kubectl inspect gpumem top", table)
	env, err := d.environment(ctx, pods[0])
	if err != nil {
		return err
	}
	d.print("kubectl logs "+pods[0].Name+"    # it prints its environment", env)
	return d.fragment(ctx)
}

// fragment has a pod wait that fits on no GPU, though enough is free on two of one node, and moves
// another out of its way.
func (d *demonstration) fragment(ctx context.Context) error {
	d.steps.Next("Apply a Deployment of two notebooks of 5 GiB, each on a T4 of its own")
	if _, err := d.stack.Kubectl(ctx, d.cluster, "apply", "-f", d.stack.Sample("notebooks.yaml")); err != nil {
		return err
	}
	if _, err := d.waitRunning(ctx, 5); err != nil {
		return err
	}
	d.steps.Next("Apply a pod of 12 GiB, which no T4 has free")
	if _, err := d.stack.Kubectl(ctx, d.cluster, "apply", "-f", d.stack.Sample("train.yaml")); err != nil {
		return err
	}
	if err := d.waitFragmented(ctx, "train"); err != nil {
		return err
	}
	for _, args := range [][]string{{"explain", "train"}, {"defrag", "train"}} {
		if err := d.inspect(ctx, args...); err != nil {
			return err
		}
	}
	d.steps.Next("Evict the pod of the plan: its Deployment recreates it on another node")
	if err := d.inspect(ctx, "defrag", "train", "--apply"); err != nil {
		return err
	}
	if _, err := d.waitRunning(ctx, 6); err != nil {
		return err
	}
	return d.inspect(ctx)
}

// inspect runs kubectl inspect gpumem and prints what it says.
func (d *demonstration) inspect(ctx context.Context, args ...string) error {
	said, err := d.stack.Inspect(ctx, d.cluster, args...)
	if err != nil {
		return err
	}
	d.print(strings.Join(append([]string{"kubectl inspect gpumem"}, args...), " "), said)
	return nil
}

// waitFragmented waits until the scheduler has said that a pod fits on no GPU, though enough is free.
func (d *demonstration) waitFragmented(ctx context.Context, name string) error {
	return stack.Eventually(ctx, 30*time.Second, "pod "+name+" waits for one GPU", func(ctx context.Context) (bool, string) {
		pod, err := d.cluster.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		said := fmt.Sprint(pod.Status.Conditions)
		return strings.Contains(said, "fragmented"), said
	})
}

func (d *demonstration) print(command, output string) {
	fmt.Fprintf(d.stdout, "\n$ %s\n%s", command, output)
}

// waitOffered waits until every node offers its GPUs: a pod that comes before has
// fewer to choose from.
func (d *demonstration) waitOffered(ctx context.Context) error {
	return stack.Eventually(ctx, 2*time.Minute, "all nodes offer "+string(gpuMem), func(ctx context.Context) (bool, string) {
		nodes, err := d.cluster.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, node := range nodes.Items {
			if offered := node.Status.Allocatable[gpuMem]; offered.IsZero() {
				return false, node.Name + " does not"
			}
		}
		return true, ""
	})
}

// waitRunning waits until there are n pods in the default namespace, all running.
func (d *demonstration) waitRunning(ctx context.Context, n int) ([]v1.Pod, error) {
	var pods []v1.Pod
	err := stack.Eventually(ctx, 2*time.Minute, fmt.Sprintf("%d pods run", n), func(ctx context.Context) (bool, string) {
		list, err := d.cluster.Client().CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		pods = list.Items
		for _, pod := range pods {
			if pod.Status.Phase != v1.PodRunning {
				return false, fmt.Sprintf("%s is %s", pod.Name, pod.Status.Phase)
			}
		}
		return len(pods) == n, fmt.Sprintf("%d run", len(pods)) // none of them terminates
	})
	return pods, err
}

// use has the simulated drivers say that the pods' programs use their GPUs, and returns what the
// command top then says of all of them.
func (d *demonstration) use(ctx context.Context) (table string, err error) {
	if err := stack.Use(d.cluster, d.nodes, uses); err != nil {
		return "", err
	}
	err = stack.Eventually(ctx, time.Minute, "use is known", func(ctx context.Context) (bool, string) {
		table, err = d.stack.Inspect(ctx, d.cluster, "top")
		return err == nil && !strings.Contains(table, "?"), fmt.Sprint(err, "\n", table)
	})
	return table, err
}

// environment returns what the pod has printed of its environment. The first
// line may come a moment after the pod runs.
func (d *demonstration) environment(ctx context.Context, pod v1.Pod) (string, error) {
	var text string
	err := stack.Eventually(ctx, 30*time.Second, "pod "+pod.Name+" prints its environment", func(ctx context.Context) (bool, string) {
		log, err := d.cluster.Client().CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &v1.PodLogOptions{}).DoRaw(ctx)
		text = string(log)
		return strings.Contains(text, "NVIDIA_VISIBLE_DEVICES="), fmt.Sprint(err, text)
	})
	return text, err
}

func (d *demonstration) explain(ctx context.Context) error {
	kubectl, err := d.cluster.Kubectl()
	if err != nil {
		return err
	}
	helm, err := d.cluster.Helm(ctx, d.progress)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.stdout, `
The cluster stays up. To use it:

  export KUBECONFIG=%s
  export PATH=%s:%s:%s:$PATH    # kubectl, kubectl-inspect-gpumem, helm
  kubectl inspect gpumem
  kubectl scale statefulset binpack-1 --replicas=8

A pod of your own, and what there is to ask:

  kubectl apply -f %s
  kubectl inspect gpumem explain single
  kubectl inspect gpumem fit --mem 12
  kubectl inspect gpumem cordon node1 0

There is no registry here: the image for pods is %s.
It prints its environment and waits, and has no shell.

To end the cluster:

  make demo-down
`, d.cluster.Kubeconfig(), filepath.Dir(kubectl), filepath.Dir(d.stack.Binary("kubectl-inspect-gpumem")), filepath.Dir(helm),
		d.stack.Sample("pod.yaml"), cluster.SampleImage)
	return nil
}
