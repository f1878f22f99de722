package extender

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/julienschmidt/httprouter"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/process/serve"
	"github.com/gpumem/gpumem/pkg/report/history"
)

// maxBody bounds a request body, in bytes. It allows 5,000 full Node objects of 20 KB.
const maxBody = 128 << 20

// Routes returns a handler for the verbs below "/", the paths that kube-scheduler calls.
func (e *Extender) Routes(version string) http.Handler {
	router := httprouter.New()
	router.POST("/filter", handle(e, history.Filter, e.Filter))
	router.POST("/prioritize", handle(e, history.Prioritize, e.Prioritize))
	router.POST("/preempt", handle(e, history.Preempt, e.Preempt))
	router.POST("/bind", handle(e, history.Bind, e.Bind))
	router.GET("/version", serve.Version(version))
	router.PanicHandler = func(w http.ResponseWriter, r *http.Request, cause any) {
		e.Log.Error("handler panicked", zap.String("path", r.URL.Path), zap.Any("cause", cause), zap.ByteString("stack", debug.Stack()))
		writeError(w, http.StatusInternalServerError, errors.New("internal error; the log of gpumem-extender has the details"))
	}
	return router
}

// handle returns a handler that decodes a request, calls f and encodes the result.
func handle[In, Out any](e *Extender, name string, f func(context.Context, *In) *Out) httprouter.Handle {
	return func(w http.ResponseWriter, r *http.Request, _ httprouter.Params) {
		if e.Answered != nil {
			began := e.Now()
			defer func() { e.Answered(name, e.Now().Sub(began)) }()
		}
		in, status, err := decodeRequest[In](w, r)
		if err != nil {
			e.Log.Warn("request refused", zap.String("path", r.URL.Path), zap.Int("status", status), zap.Error(err))
			writeError(w, status, err)
			return
		}
		if err := writeResponse(w, http.StatusOK, f(r.Context(), in)); err != nil {
			e.Log.Warn("answer not delivered", zap.String("path", r.URL.Path), zap.Error(err))
		}
	}
}

// writeResponse sends a JSON response with its length. kube-scheduler stops reading at the end of the JSON
// value. Without the length, kube-scheduler would not read the end of the response, and could not reuse the
// connection.
func writeResponse(w http.ResponseWriter, status int, answer any) error {
	body, err := json.Marshal(answer)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, err = w.Write(body)
	return err
}

func decodeRequest[In any](w http.ResponseWriter, r *http.Request) (in *In, status int, err error) {
	tooLarge := fmt.Errorf("the body is larger than %d bytes", maxBody)
	if r.ContentLength > maxBody {
		return nil, http.StatusRequestEntityTooLarge, tooLarge
	}
	err = json.UnmarshalRead(http.MaxBytesReader(w, r.Body, maxBody), &in)
	switch {
	case err == nil && in != nil:
		return in, http.StatusOK, nil
	case err == nil:
		err = errors.New("the body is null")
	case errors.As(err, new(*http.MaxBytesError)):
		return nil, http.StatusRequestEntityTooLarge, tooLarge
	case r.ContentLength == 0:
		err = errors.New("the body is empty")
	}
	return nil, http.StatusBadRequest, fmt.Errorf("want a JSON %T: %w", *new(In), err)
}

func writeError(w http.ResponseWriter, status int, err error) {
	_ = writeResponse(w, status, map[string]string{"Error": err.Error()}) // an error means that the client has disconnected
}
