package main

import (
	"context"
	"net"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/process/serve"
)

// idleAddress is where the chart's configuration of kube-scheduler has the
// extender.
const idleAddress = "127.0.0.1:8010"

// serveIdle is an extender that decides nothing, until the context is done: all
// nodes fit and are equal, and it watches nothing. It reads, writes and binds
// with the libraries that gpumem's does it with, so what it costs is what
// kube-scheduler's protocol costs with any extender.
func serveIdle(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.ContentType, config.QPS, config.Burst = runtime.ContentTypeProtobuf, 1e5, 1e5
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", idleAddress)
	if err != nil {
		return err
	}
	return serve.Run(ctx, listener, idleRoutes(client))
}

func idleRoutes(client kubernetes.Interface) http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("POST /filter", answer(func(_ context.Context, args extenderv1.ExtenderArgs) any {
		return extenderv1.ExtenderFilterResult{NodeNames: args.NodeNames}
	}))
	routes.HandleFunc("POST /prioritize", answer(func(_ context.Context, args extenderv1.ExtenderArgs) any {
		scores := make(extenderv1.HostPriorityList, len(*args.NodeNames))
		for i, name := range *args.NodeNames {
			scores[i].Host = name
		}
		return scores
	}))
	routes.HandleFunc("POST /bind", answer(func(ctx context.Context, args extenderv1.ExtenderBindingArgs) any {
		err := client.CoreV1().Pods(args.PodNamespace).Bind(ctx, &v1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: args.PodNamespace, Name: args.PodName, UID: args.PodUID},
			Target:     v1.ObjectReference{Kind: "Node", Name: args.Node},
		}, metav1.CreateOptions{})
		if err != nil {
			return extenderv1.ExtenderBindingResult{Error: err.Error()}
		}
		return extenderv1.ExtenderBindingResult{}
	}))
	return routes
}

func answer[In any](f func(context.Context, In) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		if err := json.UnmarshalRead(r.Body, &in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body, err := json.Marshal(f(r.Context(), in))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body) // kube-scheduler is gone: nobody to tell
	}
}
