package attack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/stack"
)

// pods are attacks by what a pod asks for, and from within one.
func pods() []attempt {
	taken := func(want string, control, attack func(*v1.Pod)) func(context.Context, *field) (string, error) {
		return func(ctx context.Context, f *field) (string, error) {
			if err := dryRun(ctx, f.dev, f.pod("tried", 1, control)); err != nil {
				return "", fmt.Errorf("the same pod without it fails: %w", err)
			}
			return failsWith(dryRun(ctx, f.dev, f.pod("tried", 1, attack)), want)
		}
	}
	env := func(name, value string) func(*v1.Pod) {
		return func(pod *v1.Pod) { pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: name, Value: value}} }
	}
	harmless := env("MINE", "all")
	return []attempt{
		{"see all GPUs, by NVIDIA_VISIBLE_DEVICES", taken("sets NVIDIA_VISIBLE_DEVICES", harmless, env("NVIDIA_VISIBLE_DEVICES", "all"))},
		{"take more than was granted, by the MPS limit", taken("sets CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", harmless, env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=99G"))},
		{"take more than was granted, by the kernel's limit", taken("sets NVIDIA_GPU_MEMORY_LIMIT", harmless, env("NVIDIA_GPU_MEMORY_LIMIT", "99999"))},
		{"see all GPUs, as privileged", taken("is privileged", harmless, func(pod *v1.Pod) {
			pod.Spec.Containers[0].SecurityContext = &v1.SecurityContext{Privileged: new(true)}
		})},
		{"see all GPUs, by an ephemeral container", ephemeral},
		{"see all GPUs, by a ConfigMap of the container with the grant (envFrom)", fromConfigMap("main", "")},
		{"see all GPUs, by a ConfigMap of a sidecar (envFrom)", fromConfigMap("side", "void")},
		{"see all GPUs, by a limit of 0 of nvidia.com/gpu, or of 1 and nodeName (admission.guardGPUs)", guarded},
		{"have the extender match many globs", taken("32 of them and 1024 bytes at most", annotated("gpu-uuid", strings.Repeat("!z*,", 31)+"!z"), annotated("gpu-uuid", strings.Repeat("!z*,", 32)+"!z"))},
		{"have the extender match long globs", taken("32 of them and 1024 bytes at most", annotated("gpu-uuid", strings.Repeat("x", 1024)), annotated("gpu-uuid", strings.Repeat("x", 1025)))},
		{"stop the extender with an amount of 1e999999", enormous},
		{"keep the victim off GPUs by the name of its exclusive-group", group},
		{"bind by the extender's own port, from a pod", answers(":8010/bind", "connection refused")},
		{"ask the extender to filter, from a pod", answers(":8010/filter", "connection refused")},
		{"read what was decided about others, from a pod", answers(":8013/api/v1/decisions", "connection refused")},
		{"bind by the port of the metrics, from a pod", answers(":8011/bind", " 404 ")},
		{"filter by the port of the metrics, from a pod", answers(":8011/filter", " 404 ")},
		{"read decisions by the port of the metrics, from a pod", answers(":8011/api/v1/decisions", " 404 ")},
		{"read the extender's memory, from a pod", answers(":8011/debug/pprof/heap", " 404 ")},
		{"flood the extender's metrics, from a pod", flood},
		{"tell others what their pods use, as a device plugin of one's own", fakePlugin},
	}
}

func ephemeral(ctx context.Context, f *field) (string, error) {
	debug := func(name string) error {
		pod, err := f.dev.CoreV1().Pods(f.mine).Get(ctx, "mine", metav1.GetOptions{})
		if err != nil {
			return err
		}
		pod.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{
			Name: "debugger", Image: "i", Env: []v1.EnvVar{{Name: name, Value: "all"}},
		}}}
		_, err = f.controller.CoreV1().Pods(f.mine).UpdateEphemeralContainers(ctx, pod.Name, pod, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	if err := debug("MINE"); err != nil {
		return "", fmt.Errorf("the same container without it fails: %w", err)
	}
	return failsWith(debug("NVIDIA_VISIBLE_DEVICES"), "sets NVIDIA_VISIBLE_DEVICES")
}

// fromConfigMap gives a container NVIDIA_VISIBLE_DEVICES by a ConfigMap. Want is what it then
// has; empty: it is not created.
func fromConfigMap(container, want string) func(context.Context, *field) (string, error) {
	return func(ctx context.Context, f *field) (string, error) {
		_, err := f.dev.CoreV1().ConfigMaps(f.mine).Create(ctx, &v1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "gpus"}, Data: map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return "", err
		}
		name := "env-of-" + container
		pod := f.pod(name, 1, onNode(node))
		pod.Spec.Containers = append(pod.Spec.Containers, stack.SampleContainer("side", 0))
		for i := range pod.Spec.Containers {
			if pod.Spec.Containers[i].Name == container {
				pod.Spec.Containers[i].EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "gpus"}}}}
			}
		}
		if err := create(ctx, f.dev, pod); err != nil {
			return "", err
		}
		var seen string
		if want != "" {
			text, err := f.log(ctx, name, container, "NVIDIA_VISIBLE_DEVICES=")
			if err != nil {
				return "", err
			}
			seen = oneLine(text)
			if !strings.Contains(text, "NVIDIA_VISIBLE_DEVICES="+want+"\n") {
				return "", fmt.Errorf("it has %s", seen)
			}
			return "it has " + seen, f.end(ctx, name)
		}
		err = f.podUntil(ctx, "the container is not created", f.mine, name, func(pod *v1.Pod) (bool, string) {
			for _, c := range pod.Status.ContainerStatuses {
				if w := c.State.Waiting; c.Name == container && w != nil && w.Reason == "CreateContainerError" {
					seen = w.Reason + ": " + w.Message
				}
			}
			return seen != "", fmt.Sprint(pod.Status.ContainerStatuses)
		})
		if err != nil {
			return "", err
		}
		return seen, f.end(ctx, name)
	}
}

// guarded turns admission.guardGPUs on, under another name.
func guarded(ctx context.Context, f *field) (string, error) {
	policies, err := f.Stack.Render(ctx, f.Cluster, "templates/admission/guard-gpus.yaml", "fullnameOverride=attack", "admission.guardGPUs=true")
	if err != nil {
		return "", err
	}
	if err := f.Stack.Apply(ctx, f.Cluster, policies); err != nil {
		return "", err
	}
	f.undo = append(f.undo, func(ctx context.Context) error { return f.Stack.Delete(ctx, f.Cluster, policies) })
	tries := func(gpus string, more ...func(*v1.Pod)) error {
		pod := f.pod("tried", 0, more...)
		pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}}
		if gpus != "" {
			pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{"nvidia.com/gpu": resource.MustParse(gpus)}
		}
		return dryRun(ctx, f.dev, pod)
	}
	const want = "sets NVIDIA_VISIBLE_DEVICES and the pod asks for no GPU"
	if err := f.until(ctx, "the policy is there", func(context.Context) (bool, string) {
		_, err := failsWith(tries(""), want)
		return err == nil, fmt.Sprint(err)
	}); err != nil {
		return "", err
	}
	if err := tries("1"); err != nil {
		return "", fmt.Errorf("with a limit of 1 it fails too: %w", err)
	}
	if said, err := failsWith(tries("0"), want); err != nil {
		return said, err
	}
	// The kubelet ignores a resource that its node does not have.
	return failsWith(tries("1", placed(node)), "names its node")
}

// enormous sends the amount as it is written: a client would work it out.
func enormous(ctx context.Context, f *field) (string, error) {
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"enormous","namespace":%q},"spec":{"schedulerName":"gpumem-scheduler",
		"containers":[{"name":"main","image":"i","resources":{"limits":{"gpumem.dev/gpu-mem":"1e999999"}}}]}}`, f.mine)
	sent := f.dev.CoreV1().RESTClient().Post().Namespace(f.mine).Resource("pods").Body([]byte(body)).SetHeader("Content-Type", "application/json").Do(ctx).Error()
	began := time.Now()
	if err := f.start(ctx, f.dev, f.pod("after", 1, onNode(node))); err != nil {
		return "", err
	}
	seen := fmt.Sprintf("the API server says %v; the next pod ran after %s", sent, time.Since(began).Round(time.Millisecond))
	if sent == nil {
		return seen, errors.Join(f.remove(ctx, f.mine, "enormous"), f.end(ctx, "after"))
	}
	return seen, f.end(ctx, "after")
}

// group takes the one GPU that is left by a group, and sees that it is the attacker's alone.
func group(ctx context.Context, f *field) (string, error) {
	prod := annotated("exclusive-group", "prod")
	if err := f.start(ctx, f.dev, f.pod("first", 1, onNode(node), prod)); err != nil {
		return "", err
	}
	if err := create(ctx, f.dev, f.pod("second", 1, onNode(node), prod)); err != nil {
		return "", err
	}
	if err := f.podUntil(ctx, "the group keeps the attacker's second pod apart", f.mine, "second", func(pod *v1.Pod) (bool, string) {
		return strings.Contains(fmt.Sprint(pod.Status.Conditions), `apart from exclusive-group "prod"`), fmt.Sprint(pod.Status.Conditions)
	}); err != nil {
		return "", err
	}
	pod := f.pod("prod", 1, onNode(node), prod)
	pod.Namespace = f.hers
	err := f.start(ctx, f.admin, pod)
	return "the victim's pod of that group runs; the attacker's second waits", errors.Join(err, f.end(ctx, "second"), f.end(ctx, "first"), f.remove(ctx, f.hers, "prod"))
}

// answers fetches all URLs of these attacks by one pod, and sees what one of them came to.
func answers(of, want string) func(context.Context, *field) (string, error) {
	return func(ctx context.Context, f *field) (string, error) {
		if err := f.fetch(ctx); err != nil {
			return "", err
		}
		for url, said := range f.fetched {
			if strings.HasSuffix(url, ":8011/metrics") && !strings.Contains(said, " 200 ") {
				return "", fmt.Errorf("what is open is not reached either: %s", said)
			}
			if strings.HasSuffix(url, of) {
				if !strings.Contains(said, want) {
					return "", errors.New(said)
				}
				return said, nil
			}
		}
		return "", fmt.Errorf("nothing was fetched from %s", of)
	}
}

func (f *field) fetch(ctx context.Context) error {
	if f.fetched != nil {
		return nil
	}
	scheduler, err := f.podOf(ctx, "scheduler", "")
	if err != nil {
		return err
	}
	at := scheduler.Status.PodIP
	var args, urls []string
	for _, path := range []string{":8010/bind", ":8010/filter", ":8013/api/v1/decisions", ":8011/bind", ":8011/filter", ":8011/api/v1/decisions", ":8011/debug/pprof/heap", ":8011/metrics"} {
		urls = append(urls, "http://"+at+path)
		args = append(args, "-get=http://"+at+path)
	}
	if err := create(ctx, f.dev, f.pod("fetches", 0, placed(node), doing(args...))); err != nil {
		return err
	}
	text, err := f.log(ctx, "fetches", "main", urls[len(urls)-1])
	if err != nil {
		return err
	}
	f.fetched = make(map[string]string)
	for line := range strings.Lines(text) {
		for _, url := range urls {
			if strings.HasPrefix(line, "get:") && strings.Contains(line, url) {
				f.fetched[url] = oneLine(line)
			}
		}
	}
	return nil
}

// flood asks 256 times at once, while a pod is placed.
func flood(ctx context.Context, f *field) (string, error) {
	const most = 512 // MiB
	scheduler, err := f.podOf(ctx, "scheduler", "")
	if err != nil {
		return "", err
	}
	before, err := f.peak(f.Stack.Decider())
	if err != nil {
		return "", err
	}
	if err := create(ctx, f.dev, f.pod("floods", 0, placed(otherNode), doing("-flood=http://"+scheduler.Status.PodIP+":8011/metrics"))); err != nil {
		return "", err
	}
	if _, err := f.log(ctx, "floods", "main", "flood:"); err != nil {
		return "", err
	}
	for i := range 3 {
		name := fmt.Sprint("meanwhile-", i)
		if err := f.start(ctx, f.dev, f.pod(name, 1, onNode(node))); err != nil {
			return "", err
		}
		if err := f.end(ctx, name); err != nil {
			return "", err
		}
	}
	after, err := f.peak(f.Stack.Decider())
	if err != nil {
		return "", err
	}
	seen := fmt.Sprintf("three pods ran meanwhile; the most memory that %s had: %.0f MiB, %.0f before", f.Stack.Decider(), after, before)
	if err := f.remove(ctx, f.mine, "floods"); err != nil {
		return "", err
	}
	if after > most {
		return "", errors.New(seen)
	}
	return seen, nil
}

// peak returns the MiB that a program of the cluster's pods had at most; of several, the largest.
func (f *field) peak(program string) (mib float64, err error) {
	processes, err := f.Cluster.ContainerProcesses(program)
	for _, p := range processes {
		own, err := cluster.PeakMemory(p.PID)
		if err != nil {
			return 0, err
		}
		mib = max(mib, own)
	}
	if err == nil && mib == 0 {
		err = fmt.Errorf("no process of %s", program)
	}
	return mib, err
}

// fakePlugin is a pod with the labels of gpumem's, which tells of the victim's.
func fakePlugin(ctx context.Context, f *field) (string, error) {
	plugin, err := f.podOf(ctx, "device-plugin", node)
	if err != nil {
		return "", err
	}
	const used = 84771 // MiB
	text := fmt.Sprintf("# TYPE gpumem_device_plugin_container_memory_used_bytes gauge\n"+
		"gpumem_device_plugin_container_memory_used_bytes{namespace=%q,pod=\"alone\",container=\"main\",uuid=%q} %d\n", f.hers, f.alone, used<<20)
	pod := f.pod("fake", 0, placed(node), doing("-serve=:8012", "-text="+text))
	pod.Labels = maps.Clone(plugin.Labels)
	delete(pod.Labels, "controller-revision-hash")
	delete(pod.Labels, "pod-template-generation")
	pod.Spec.Containers[0].Ports = plugin.Spec.Containers[0].Ports
	if err := create(ctx, f.dev, pod); err != nil {
		return "", err
	}
	if err := f.until(ctx, "it answers as a plugin does", func(ctx context.Context) (bool, string) {
		got, err := f.admin.CoreV1().Pods(f.mine).ProxyGet("http", "fake", "8012", "/metrics", nil).DoRaw(ctx)
		return err == nil && strings.Contains(string(got), fmt.Sprint(used<<20)), fmt.Sprint(err, string(got))
	}); err != nil {
		return "", err
	}
	said, err := f.Stack.Inspect(ctx, f.Cluster, "top")
	if err != nil {
		return "", fmt.Errorf("kubectl inspect gpumem top: %w: %s", err, said)
	}
	if !strings.Contains(said, "alone") {
		return "", fmt.Errorf("top does not tell of the victim's pod at all: %s", said)
	}
	if strings.Contains(said, fmt.Sprint(used)) {
		return "", errors.New(said)
	}
	return "kubectl inspect gpumem top does not believe it", f.remove(ctx, f.mine, "fake")
}
