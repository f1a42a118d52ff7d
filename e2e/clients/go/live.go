package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const liveQueue = "clients.amqp091-go.live"

// side is one of the two connections: how often it was lost, and what it did since.
type side struct{ losses, since int }

// ledger knows which messages were confirmed and which came, so that none is missed and none comes twice unannounced.
type ledger struct {
	sync.Mutex
	resume              int
	next                int
	confirmed, received map[int]bool
	doubled             []int
	publisher, consumer side
	live                bool
}

// number is used once: what was not confirmed is not sent again.
func (l *ledger) number() int {
	l.Lock()
	defer l.Unlock()
	l.next++
	return l.next - 1
}

func (l *ledger) confirm(number int) {
	l.Lock()
	defer l.Unlock()
	l.confirmed[number] = true
	l.publisher.since++
	l.sayLive()
}

func (l *ledger) receive(number int, redelivered bool) {
	l.Lock()
	defer l.Unlock()
	if l.received[number] {
		if !redelivered {
			l.doubled = append(l.doubled, number)
		}
		return
	}
	l.received[number] = true
	l.consumer.since++
	l.sayLive()
}

func (l *ledger) lose(s *side) {
	l.Lock()
	defer l.Unlock()
	s.losses++
	s.since = 0
}

func (l *ledger) sayLive() {
	if !l.live && len(l.confirmed) >= l.resume && len(l.received) >= l.resume {
		l.live = true
		say(map[string]any{"live": true})
	}
}

// resumed says that both sides were lost and went on: enough was published.
func (l *ledger) resumed() bool {
	l.Lock()
	defer l.Unlock()
	return l.publisher.losses > 0 && l.consumer.losses > 0 && l.publisher.since >= l.resume && l.consumer.since >= l.resume
}

// verdict is nil once both connections were lost and went on, and nothing confirmed is missing.
func (l *ledger) verdict() error {
	l.Lock()
	defer l.Unlock()
	for name, s := range map[string]side{"publisher": l.publisher, "consumer": l.consumer} {
		if s.losses == 0 {
			return fmt.Errorf("the %s was never told of the primary's death", name)
		}
		if s.since < l.resume {
			return fmt.Errorf("the %s did not resume: %d messages since its connection was lost", name, s.since)
		}
	}
	for number := range l.confirmed {
		if !l.received[number] {
			return fmt.Errorf("confirmed and never delivered: %d", number)
		}
	}
	return nil
}

// live publishes and consumes on two connections until both were lost and went on.
func live(ctx context.Context, s scene) (string, error) {
	l := &ledger{resume: s.Resume, confirmed: map[int]bool{}, received: map[int]bool{}}
	ctx, stop := context.WithCancel(ctx)
	var sides sync.WaitGroup
	sides.Add(2)
	go func() { defer sides.Done(); publishOn(ctx, s, l) }()
	go func() { defer sides.Done(); consumeOn(ctx, s, l) }()
	defer func() { stop(); sides.Wait() }()

	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := l.verdict()
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-tick.C:
		}
	}
	l.Lock()
	defer l.Unlock()
	if len(l.doubled) > 0 {
		return "", fmt.Errorf("delivered twice without the redelivered flag: %v", l.doubled)
	}
	return fmt.Sprintf("%d confirmed, %d received", len(l.confirmed), len(l.received)), nil
}

func publishOn(ctx context.Context, s scene, l *ledger) {
	for ctx.Err() == nil && !l.resumed() {
		connection, err := connect(ctx, s.Addresses)
		if err != nil {
			return
		}
		publishUntilLost(ctx, connection, l)
		_ = connection.Close() // It is lost, or no longer wanted.
		if ctx.Err() == nil && !l.resumed() {
			l.lose(&l.publisher)
		}
	}
}

func publishUntilLost(ctx context.Context, connection *amqp.Connection, l *ledger) {
	channel, err := confirming(connection, liveQueue)
	if err != nil {
		return
	}
	for ctx.Err() == nil && !l.resumed() {
		number := l.number()
		if err := publish(ctx, channel, "", liveQueue, persistent(strconv.Itoa(number))); err != nil {
			return
		}
		l.confirm(number)
		time.Sleep(10 * time.Millisecond) // A modest publisher.
	}
}

func consumeOn(ctx context.Context, s scene, l *ledger) {
	for ctx.Err() == nil {
		connection, err := connect(ctx, s.backupFirst())
		if err != nil {
			return
		}
		consumeUntilLost(ctx, connection, l)
		_ = connection.Close() // It is lost, or no longer wanted.
		if ctx.Err() == nil {
			l.lose(&l.consumer)
		}
	}
}

func consumeUntilLost(ctx context.Context, connection *amqp.Connection, l *ledger) {
	channel, err := confirming(connection, liveQueue)
	if err != nil {
		return
	}
	if err := channel.Qos(10, 0, false); err != nil {
		return
	}
	deliveries, err := channel.Consume(liveQueue, "", false, false, false, false, nil)
	if err != nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case delivery, open := <-deliveries:
			if !open {
				return
			}
			if number, err := strconv.Atoi(string(delivery.Body)); err == nil {
				l.receive(number, delivery.Redelivered)
			}
			if delivery.Ack(false) != nil {
				return
			}
		}
	}
}
