// amqp091-go: one process that publishes, confirms, consumes and acks, loses its broker, and goes on.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// scene is what the one who starts this process tells it.
type scene struct {
	Addresses       []string `json:"addresses"`
	Backup          string   `json:"backup"`
	Round           int      `json:"round"`
	Left            int      `json:"left"`
	Resume          int      `json:"resume"`
	ReplyBytes      int      `json:"reply_bytes"`
	PatienceSeconds int      `json:"patience_seconds"`
}

func (s scene) patience() time.Duration { return time.Duration(s.PatienceSeconds) * time.Second }

// backupFirst is the list of one whose first door is a backup's.
func (s scene) backupFirst() []string {
	order := []string{s.Backup}
	for _, address := range s.Addresses {
		if address != s.Backup {
			order = append(order, address)
		}
	}
	return order
}

func say(line map[string]any) {
	// A map of strings and booleans always encodes, and a closed stdout means that nobody listens any more.
	_ = json.NewEncoder(os.Stdout).Encode(line)
}

func numbers(count int) []int {
	list := make([]int, count)
	for i := range list {
		list[i] = i
	}
	return list
}

const reconnectPause = 100 * time.Millisecond

func connect(ctx context.Context, addresses []string) (*amqp.Connection, error) {
	for {
		var last error
		for _, address := range addresses {
			connection, err := amqp.Dial("amqp://guest:guest@" + address + "/")
			if err == nil {
				return connection, nil
			}
			last = err
		}
		select {
		case <-ctx.Done():
			return nil, last
		case <-time.After(reconnectPause):
		}
	}
}

// confirming is a channel in confirm mode, and the queue, declared as an application does after each connect.
func confirming(connection *amqp.Connection, queue string) (*amqp.Channel, error) {
	channel, err := connection.Channel()
	if err != nil {
		return nil, err
	}
	if err := channel.Confirm(false); err != nil {
		return nil, err
	}
	_, err = channel.QueueDeclare(queue, true, false, false, false, nil)
	return channel, err
}

func persistent(body string) amqp.Publishing {
	return amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)}
}

// publish returns once the broker has confirmed.
func publish(ctx context.Context, channel *amqp.Channel, exchange, key string, message amqp.Publishing) error {
	confirmation, err := channel.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false, message)
	if err != nil {
		return err
	}
	acked, err := confirmation.WaitContext(ctx)
	if err == nil && !acked {
		err = errors.New("the broker refused a message, or the channel closed first")
	}
	return err
}

func roundTrip(ctx context.Context, s scene) (string, error) {
	connection, err := connect(ctx, s.Addresses)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	channel, err := confirming(connection, "clients.amqp091-go.round")
	if err != nil {
		return "", err
	}
	returned := channel.NotifyReturn(make(chan amqp.Return, 1))
	if err := channel.ExchangeDeclare("clients.amqp091-go", "direct", true, false, false, false, nil); err != nil {
		return "", err
	}
	if err := channel.QueueBind("clients.amqp091-go.round", "round", "clients.amqp091-go", false, nil); err != nil {
		return "", err
	}
	for number := range numbers(s.Round) {
		message := persistent(strconv.Itoa(number))
		message.Headers = amqp.Table{"number": int64(number), "odd": number%2 == 1}
		if err := publish(ctx, channel, "clients.amqp091-go", "round", message); err != nil {
			return "", err
		}
	}
	if err := publish(ctx, channel, "clients.amqp091-go", "nowhere", persistent("lost")); err != nil {
		return "", err
	}
	select {
	case message := <-returned:
		if message.ReplyCode != 312 || string(message.Body) != "lost" {
			return "", fmt.Errorf("returned was %d %q", message.ReplyCode, message.Body)
		}
	default:
		return "", errors.New("an unroutable mandatory message was confirmed before it was returned")
	}

	if err := channel.Qos(10, 0, false); err != nil {
		return "", err
	}
	deliveries, err := channel.Consume("clients.amqp091-go.round", "round", false, false, false, false, nil)
	if err != nil {
		return "", err
	}
	for _, expected := range numbers(s.Round) {
		select {
		case delivery, open := <-deliveries:
			if !open {
				return "", errors.New("the consumer's channel closed")
			}
			headers := amqp.Table{"number": int64(expected), "odd": expected%2 == 1}
			if string(delivery.Body) != strconv.Itoa(expected) || !reflect.DeepEqual(delivery.Headers, headers) {
				return "", fmt.Errorf("came %q with %v where %d was due", delivery.Body, delivery.Headers, expected)
			}
			if err := delivery.Ack(false); err != nil {
				return "", err
			}
		case <-ctx.Done():
			return "", fmt.Errorf("only %d of %d came", expected, s.Round)
		}
	}
	if err := channel.Cancel("round", false); err != nil {
		return "", err
	}
	state, err := channel.QueueDeclarePassive("clients.amqp091-go.round", true, false, false, false, nil)
	if err != nil {
		return "", err
	}
	if state.Messages != 0 {
		return "", fmt.Errorf("%d messages left after the acks", state.Messages)
	}

	replyTo, err := channel.QueueDeclare("", false, true, true, false, nil)
	if err != nil {
		return "", err
	}
	answer := amqp.Publishing{CorrelationId: "7", Body: bytes.Repeat([]byte("."), s.ReplyBytes)}
	if err := publish(ctx, channel, "", replyTo.Name, answer); err != nil {
		return "", err
	}
	reply, found, err := channel.Get(replyTo.Name, true)
	if err != nil || !found || reply.CorrelationId != "7" || !bytes.Equal(reply.Body, answer.Body) {
		return "", fmt.Errorf("the reply was found: %v, of %d bytes, %v", found, len(reply.Body), err)
	}
	return fmt.Sprintf("%d confirmed, consumed and acked", s.Round), connection.Close()
}

func relay(ctx context.Context, s scene) (string, error) {
	connection, err := connect(ctx, []string{s.Backup})
	if err != nil {
		return "", err
	}
	defer connection.Close()
	channel, err := confirming(connection, "clients.amqp091-go.relay")
	if err != nil {
		return "", err
	}
	if err := publish(ctx, channel, "", "clients.amqp091-go.relay", persistent("through")); err != nil {
		return "", err
	}
	delivery, found, err := channel.Get("clients.amqp091-go.relay", false)
	if err != nil || !found || string(delivery.Body) != "through" {
		return "", fmt.Errorf("got %q, %v", delivery.Body, err)
	}
	if err := delivery.Ack(false); err != nil {
		return "", err
	}
	if _, err := channel.QueueDelete("clients.amqp091-go.relay", false, false, false); err != nil {
		return "", err
	}
	return "through " + s.Backup, connection.Close()
}

func leave(ctx context.Context, s scene) (string, error) {
	connection, err := connect(ctx, s.Addresses)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	channel, err := confirming(connection, "clients.amqp091-go.left")
	if err != nil {
		return "", err
	}
	for number := range numbers(s.Left) {
		if err := publish(ctx, channel, "", "clients.amqp091-go.left", persistent(strconv.Itoa(number))); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d confirmed, not consumed", s.Left), connection.Close()
}

func kept(ctx context.Context, s scene) (string, error) {
	connection, err := connect(ctx, s.Addresses)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	channel, err := confirming(connection, "clients.amqp091-go.left")
	if err != nil {
		return "", err
	}
	came := []string{}
	for {
		delivery, found, err := channel.Get("clients.amqp091-go.left", false)
		if err != nil {
			return "", err
		}
		if !found {
			break
		}
		came = append(came, string(delivery.Body))
		if err := delivery.Ack(false); err != nil {
			return "", err
		}
	}
	expected := strings.Fields(strings.Trim(fmt.Sprint(numbers(s.Left)), "[]"))
	if !reflect.DeepEqual(came, expected) {
		return "", fmt.Errorf("of %d left before the failover there came %v", s.Left, came)
	}
	return fmt.Sprintf("%d of %d, each once", len(came), s.Left), connection.Close()
}

func main() {
	var s scene
	if err := json.Unmarshal([]byte(os.Getenv("UNDERSTUDY_SCENE")), &s); err != nil {
		fmt.Fprintln(os.Stderr, "UNDERSTUDY_SCENE:", err)
		os.Exit(2)
	}
	steps := []struct {
		name string
		play func(context.Context, scene) (string, error)
	}{
		{"round", roundTrip}, {"relay", relay}, {"leave", leave}, {"resume", live}, {"kept", kept}, {"round again", roundTrip},
	}
	for _, step := range steps {
		ctx, cancel := context.WithTimeout(context.Background(), s.patience())
		detail, err := step.play(ctx, s)
		cancel()
		if err != nil {
			say(map[string]any{"step": step.name, "ok": false, "detail": err.Error()})
			os.Exit(1)
		}
		say(map[string]any{"step": step.name, "ok": true, "detail": detail})
	}
}
