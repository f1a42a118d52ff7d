import com.rabbitmq.client.ConnectionFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;
import org.springframework.amqp.AmqpException;
import org.springframework.amqp.core.AnonymousQueue;
import org.springframework.amqp.core.BindingBuilder;
import org.springframework.amqp.core.Declarables;
import org.springframework.amqp.core.DirectExchange;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.MessageListener;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.core.QueueBuilder;
import org.springframework.amqp.core.QueueInformation;
import org.springframework.amqp.core.TopicExchange;
import org.springframework.amqp.rabbit.config.RetryInterceptorBuilder;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.core.RabbitAdmin;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.amqp.rabbit.listener.AbstractMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.DirectMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.adapter.MessageListenerAdapter;
import org.springframework.amqp.rabbit.retry.RepublishMessageRecoverer;
import org.springframework.amqp.rabbit.retry.RepublishMessageRecovererWithConfirms;
import org.springframework.amqp.rabbit.transaction.RabbitTransactionManager;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.transaction.support.TransactionTemplate;

/** An application on Spring AMQP: listener containers of both kinds, correlated confirms and returns, a retry interceptor, transactions. */
public final class SpringProgram {
    private static final String SHOP = "shop", DEAD_EXCHANGE = "shop.dead", AGAIN = "again";
    private static final String SIMPLE = "orders.simple", DIRECT = "orders.direct", LEDGER = "orders.ledger", DEAD = "orders.dead";
    private static final String QUESTIONS = "orders.questions", ALONE = "orders.alone";
    private static final int ORDERS = 600, AFTERWARDS = 50, DONE_AT_KILL = 100, TRANSACTIONS_AT_KILL = 10, UNCONFIRMED = 50;
    private static final int TRANSACTIONS_AFTER = 30, PARTS = 3, ASKED = 20;
    private static final int ATTEMPTS = 3;
    private static final long CONFIRM_SECONDS = 10, PAUSE_MS = 100;

    /** What the listeners have done. */
    static final class Done {
        final Story.Effects simple = new Story.Effects(), direct = new Story.Effects(), ledger = new Story.Effects();
        final Story.Effects alone = new Story.Effects();
        /** The tags of the exclusive consumers that were given something: a new one for each time that one of them consumes. */
        final Set<String> turns = ConcurrentHashMap.newKeySet();
        final Set<String> instance = ConcurrentHashMap.newKeySet();
        final Map<String, AtomicInteger> failures = new ConcurrentHashMap<>();
        final AtomicInteger recovererPublishes = new AtomicInteger();
    }

    @Configuration(proxyBeanMethods = false)
    static class Application {
        @Bean
        Done work() {
            return new Done();
        }

        static CachingConnectionFactory factory() {
            ConnectionFactory client = new ConnectionFactory();
            client.setRequestedHeartbeat(10);
            client.setConnectionTimeout(5000);
            // Spring recovers by itself, and says so when the client does too.
            client.setAutomaticRecoveryEnabled(false);
            CachingConnectionFactory factory = new CachingConnectionFactory(client);
            factory.setAddresses(String.join(",", Story.addresses()));
            return factory;
        }

        @Bean
        CachingConnectionFactory connectionFactory() {
            CachingConnectionFactory factory = factory();
            factory.setPublisherConfirmType(CachingConnectionFactory.ConfirmType.CORRELATED);
            factory.setPublisherReturns(true);
            return factory;
        }

        /** Channels with transactions know no confirms. */
        @Bean
        CachingConnectionFactory transactional() {
            return factory();
        }

        @Bean
        RabbitTemplate template(CachingConnectionFactory connectionFactory) {
            RabbitTemplate template = new RabbitTemplate(connectionFactory);
            template.setMandatory(true);
            template.setReplyTimeout(3000);
            return template;
        }

        /** With a queue for each answer, as it was before direct reply-to. */
        @Bean
        RabbitTemplate temporaryReplies(CachingConnectionFactory connectionFactory) {
            RabbitTemplate template = new RabbitTemplate(connectionFactory);
            template.setUseTemporaryReplyQueues(true);
            template.setReplyTimeout(3000);
            return template;
        }

        @Bean
        RabbitTemplate transactionalTemplate(CachingConnectionFactory transactional) {
            RabbitTemplate template = new RabbitTemplate(transactional);
            template.setChannelTransacted(true);
            return template;
        }

        @Bean
        TransactionTemplate transactions(CachingConnectionFactory transactional) {
            return new TransactionTemplate(new RabbitTransactionManager(transactional));
        }

        @Bean
        RabbitAdmin admin(CachingConnectionFactory connectionFactory) {
            return new RabbitAdmin(connectionFactory);
        }

        @Bean
        AnonymousQueue instanceQueue() {
            return new AnonymousQueue();
        }

        @Bean
        Declarables topology(AnonymousQueue instanceQueue) {
            TopicExchange shop = new TopicExchange(SHOP);
            DirectExchange dead = new DirectExchange(DEAD_EXCHANGE);
            Queue simple = QueueBuilder.durable(SIMPLE).build(), direct = QueueBuilder.durable(DIRECT).quorum().build();
            Queue alone = QueueBuilder.durable(ALONE).build();
            Queue ledger = QueueBuilder.durable(LEDGER).build(), deads = QueueBuilder.durable(DEAD).build();
            return new Declarables(shop, dead, simple, direct, alone, ledger, deads, QueueBuilder.durable(QUESTIONS).build(),
                BindingBuilder.bind(simple).to(shop).with("order.#"), BindingBuilder.bind(direct).to(shop).with("order.*"),
                BindingBuilder.bind(instanceQueue).to(shop).with("order.#"),
                BindingBuilder.bind(alone).to(shop).with("alone"), BindingBuilder.bind(ledger).to(shop).with("ledger"), BindingBuilder.bind(deads).to(dead).with("dead"));
        }

        @Bean
        SimpleMessageListenerContainer simpleContainer(CachingConnectionFactory connectionFactory, RabbitTemplate template, Done done) {
            SimpleMessageListenerContainer container = new SimpleMessageListenerContainer(connectionFactory);
            container.setQueueNames(SIMPLE);
            container.setConcurrentConsumers(2);
            container.setPrefetchCount(10);
            container.setAdviceChain(RetryInterceptorBuilder.stateless().maxRetries(ATTEMPTS - 1).backOffOptions(20, 2.0, 100)
                .recoverer(recoverer(template, done)).build());
            container.setMessageListener((MessageListener) message -> {
                String key = text(message);
                if (poison(key)) {
                    done.failures.computeIfAbsent(key, absent -> new AtomicInteger()).incrementAndGet();
                    throw new IllegalStateException("no such customer");
                }
                // Work, so that the kill finds some left.
                pause(4);
                done.simple.add(key, again(message));
            });
            return recovering(container);
        }

        /** The one with confirms: the other takes a message for moved once it is written to a socket. */
        private static RepublishMessageRecoverer recoverer(RabbitTemplate template, Done done) {
            var confirmed = CachingConnectionFactory.ConfirmType.CORRELATED;
            return new RepublishMessageRecovererWithConfirms(template, DEAD_EXCHANGE, "dead", confirmed) {
                @Override
                protected Map<String, Object> additionalHeaders(Message message, Throwable cause) {
                    done.recovererPublishes.incrementAndGet();
                    return Map.of(AGAIN, again(message));
                }
            };
        }

        @Bean
        DirectMessageListenerContainer directContainer(CachingConnectionFactory connectionFactory, Done done) {
            DirectMessageListenerContainer container = new DirectMessageListenerContainer(connectionFactory);
            container.setQueueNames(DIRECT);
            container.setConsumersPerQueue(2);
            container.setPrefetchCount(10);
            container.setMessageListener((MessageListener) message -> {
                pause(4);
                done.direct.add(text(message), again(message));
            });
            return recovering(container);
        }

        @Bean
        DirectMessageListenerContainer instanceContainer(CachingConnectionFactory connectionFactory, AnonymousQueue instanceQueue, Done done) {
            DirectMessageListenerContainer container = new DirectMessageListenerContainer(connectionFactory);
            container.setQueues(instanceQueue);
            container.setMissingQueuesFatal(false);
            container.setMessageListener((MessageListener) message -> done.instance.add(text(message)));
            return recovering(container);
        }

        @Bean
        DirectMessageListenerContainer answering(CachingConnectionFactory connectionFactory) {
            DirectMessageListenerContainer container = new DirectMessageListenerContainer(connectionFactory);
            container.setQueueNames(QUESTIONS);
            container.setMessageListener(new MessageListenerAdapter(new Object() {
                @SuppressWarnings("unused") // By its name.
                public String handleMessage(String question) {
                    return "answer to " + question;
                }
            }));
            return recovering(container);
        }

        @Bean
        SimpleMessageListenerContainer firstAlone(CachingConnectionFactory connectionFactory, Done done) {
            return alone(connectionFactory, done);
        }

        @Bean
        SimpleMessageListenerContainer secondAlone(CachingConnectionFactory connectionFactory, Done done) {
            return alone(connectionFactory, done);
        }

        /** An exclusive consumer: one of the two is refused, and tries again until the other is gone. */
        private static SimpleMessageListenerContainer alone(CachingConnectionFactory connectionFactory, Done done) {
            SimpleMessageListenerContainer container = new SimpleMessageListenerContainer(connectionFactory);
            container.setQueueNames(ALONE);
            container.setExclusive(true);
            container.setPrefetchCount(10);
            container.setMessageListener((MessageListener) message -> {
                pause(4);
                done.turns.add(message.getMessageProperties().getConsumerTag());
                done.alone.add(text(message), again(message));
            });
            return recovering(container);
        }

        /** Acknowledges in a transaction. */
        @Bean
        SimpleMessageListenerContainer ledgerContainer(CachingConnectionFactory transactional, Done done) {
            SimpleMessageListenerContainer container = new SimpleMessageListenerContainer(transactional);
            container.setQueueNames(LEDGER);
            container.setChannelTransacted(true);
            container.setPrefetchCount(10);
            container.setBatchSize(5);
            container.setMessageListener((MessageListener) message -> done.ledger.add(text(message), again(message)));
            return recovering(container);
        }

        private static <C extends AbstractMessageListenerContainer> C recovering(C container) {
            container.setRecoveryInterval(300);
            container.setFailedDeclarationRetryInterval(300);
            return container;
        }
    }

    private final RabbitTemplate template, temporaryReplies;
    private final RabbitAdmin admin;
    private final Done done;
    private final AnonymousQueue instanceQueue;
    private final LongAdder republished = new LongAdder();

    private SpringProgram(AnnotationConfigApplicationContext context) {
        template = context.getBean("template", RabbitTemplate.class);
        temporaryReplies = context.getBean("temporaryReplies", RabbitTemplate.class);
        admin = context.getBean(RabbitAdmin.class);
        done = context.getBean(Done.class);
        instanceQueue = context.getBean(AnonymousQueue.class);
    }

    public static void main(String[] arguments) {
        try (AnnotationConfigApplicationContext context = new AnnotationConfigApplicationContext(Application.class)) {
            new SpringProgram(context).run(context);
            Story.done();
        } catch (Exception | Error failed) {
            failed.printStackTrace();
            // Threads of the containers may live on.
            System.exit(1);
        }
        System.exit(0);
    }

    private void run(AnnotationConfigApplicationContext context) throws Exception {
        returned();
        asked(template, "before");
        asked(temporaryReplies, "before, with temporary queues");
        Ledger ledger = new Ledger(context);
        ledger.start();
        Asker asker = new Asker();
        asker.start();

        List<String> orders = new ArrayList<>();
        for (int number = 0; number < ORDERS; number++) {
            orders.add(String.format("%03d", number));
        }
        List<String> singles = orders.subList(0, ORDERS / 2);
        publish("alone", singles.subList(0, singles.size() / 2));
        publish("order.created", orders.subList(0, ORDERS / 2));
        Story.await("orders to be handled", () -> done.simple.size() >= DONE_AT_KILL && done.direct.size() >= DONE_AT_KILL
            && ledger.committed.size() >= TRANSACTIONS_AT_KILL && asker.answers.get() > 0);
        Story.killPrimary();
        publish("order.created", orders.subList(ORDERS / 2, ORDERS));
        publish("alone", singles.subList(singles.size() / 2, singles.size()));

        List<String> good = orders.stream().filter(key -> !poison(key)).toList();
        List<String> poisoned = orders.stream().filter(SpringProgram::poison).toList();
        Story.await("the simple container's orders", () -> done.simple.has(good));
        Story.await("the direct container's orders", () -> done.direct.has(orders));
        Story.await("the exclusive consumers' orders", () -> done.alone.has(singles));
        int before = ledger.committed.size(), answersBefore = asker.answers.get();
        Story.await("transactions and answers after the failover",
            () -> ledger.committed.size() >= before + TRANSACTIONS_AFTER && asker.answers.get() > answersBefore);
        ledger.end();
        asker.end();

        done.simple.judge("simple container", good, republished.sum());
        done.direct.judge("direct container", orders, republished.sum());
        done.alone.judge("exclusive consumer", singles, republished.sum());
        Story.check("exclusive consumer", "one before the kill, one after it", done.turns.size() <= (Story.kills() ? 2 : 1), done.turns);
        Story.await("what failed", () -> count(DEAD) >= poisoned.size() && count(SIMPLE) == 0);
        deadLetters(poisoned);
        ledger.judge();
        Story.check("request and answer", "none was wrong, amid the failover too", asker.wrong.isEmpty() && asker.answers.get() > 0,
            asker.answers + " answers, " + asker.unanswered + " without one, wrong: " + asker.wrong);
        asked(template, "after");
        asked(temporaryReplies, "after, with temporary queues");
        instance();
        Story.same("direct container", "nothing is left in any queue",
            List.of(count(SIMPLE), count(DIRECT), count(LEDGER), count(DEAD), count(QUESTIONS), count(ALONE)),
            List.of(0L, 0L, 0L, 0L, 0L, 0L));
    }

    /** Publishes with so many unconfirmed; what is not confirmed is published again. */
    private void publish(String routingKey, List<String> keys) throws Exception {
        Deque<String> waiting = new ArrayDeque<>(keys);
        Map<String, CorrelationData> unconfirmed = new HashMap<>();
        while (!waiting.isEmpty() || !unconfirmed.isEmpty()) {
            while (!waiting.isEmpty() && unconfirmed.size() < UNCONFIRMED) {
                String key = waiting.poll();
                CorrelationData correlation = new CorrelationData(key);
                try {
                    template.convertAndSend(SHOP, routingKey, key, correlation);
                    unconfirmed.put(key, correlation);
                } catch (AmqpException lost) {
                    Story.log("not sent: " + key + ": " + lost);
                    republished.increment();
                    waiting.addFirst(key);
                    pause(PAUSE_MS);
                }
            }
            for (var entry : List.copyOf(unconfirmed.entrySet())) {
                var confirm = entry.getValue().getFuture().get(CONFIRM_SECONDS, TimeUnit.SECONDS);
                unconfirmed.remove(entry.getKey());
                if (!confirm.ack() || entry.getValue().getReturned() != null) {
                    Story.log("not confirmed: " + entry.getKey() + ": " + confirm + ", " + entry.getValue().getReturned());
                    republished.increment();
                    waiting.add(entry.getKey());
                }
            }
        }
    }

    /** A mandatory message for nobody comes back, and is confirmed all the same. */
    private void returned() throws Exception {
        CorrelationData correlation = new CorrelationData("nobody");
        template.convertAndSend(SHOP, "nobody", "lost", correlation);
        var confirm = correlation.getFuture().get(CONFIRM_SECONDS, TimeUnit.SECONDS);
        int code = correlation.getReturned() == null ? 0 : correlation.getReturned().getReplyCode();
        Story.same("confirms and returns", "unroutable: returned, then confirmed", List.of(code, confirm.ack()), List.of(312, true));
        CorrelationData nowhere = new CorrelationData("nowhere");
        template.convertAndSend("shop.nowhere", "", "lost", nowhere);
        var refused = nowhere.getFuture().get(CONFIRM_SECONDS, TimeUnit.SECONDS);
        Story.check("confirms and returns", "to an exchange that is not there: not confirmed", !refused.ack(), refused);
    }

    private static void asked(RabbitTemplate template, String when) {
        List<String> wrong = new ArrayList<>();
        for (int number = 0; number < ASKED; number++) {
            Object answer = template.convertSendAndReceive("", QUESTIONS, when + number);
            if (!("answer to " + when + number).equals(answer)) {
                wrong.add(when + number + ": " + answer);
            }
        }
        Story.check("request and answer", "each at the first try, " + when, wrong.isEmpty(), wrong);
    }

    private void deadLetters(List<String> poisoned) {
        Story.Effects dead = new Story.Effects();
        Message last = null;
        for (Message message; (message = template.receive(DEAD)) != null; last = message) {
            dead.add(text(message), again(message));
        }
        // A recoverer that has no confirm leaves the message to come again, which is marked.
        dead.judge("republished to the dead", poisoned, republished.sum());
        var headers = last.getMessageProperties().getHeaders();
        Story.check("republished to the dead", "with the reason and where it came from",
            String.valueOf(headers.get("x-exception-message")).contains("no such customer") && SHOP.equals(headers.get("x-original-exchange")),
            headers.get("x-exception-message") + " " + headers.get("x-original-exchange"));
        List<String> few = poisoned.stream().filter(key -> done.failures.get(key).get() < ATTEMPTS).toList();
        Story.check("republished to the dead", "after " + ATTEMPTS + " attempts each", few.isEmpty(), few);
    }

    private void instance() throws Exception {
        Story.await("the instance's consumer", () -> {
            QueueInformation queue = admin.getQueueInfo(instanceQueue.getName());
            return queue != null && queue.getConsumerCount() == 1;
        });
        List<String> late = new ArrayList<>();
        for (int number = 0; number < AFTERWARDS; number++) {
            late.add("late" + number);
        }
        publish("order.late", late);
        Story.await("the late orders", () -> done.simple.has(late) && done.direct.has(late) && done.instance.containsAll(late));
        Story.check("exclusive queue", "declared, bound and consumed again", true, "");
    }

    private long count(String queue) {
        try {
            QueueInformation information = admin.getQueueInfo(queue);
            return information == null ? -1 : information.getMessageCount();
        } catch (AmqpException lost) {
            return -1;
        }
    }

    /** Sends three messages in each transaction, all the time; each fifth one is rolled back. */
    private final class Ledger extends Thread {
        private final RabbitTemplate transacted;
        private final TransactionTemplate transactions;
        private final List<String> committed = new CopyOnWriteArrayList<>(), rolledBack = new ArrayList<>(),
            unknown = new ArrayList<>();
        private volatile boolean ending;

        Ledger(AnnotationConfigApplicationContext context) {
            transacted = context.getBean("transactionalTemplate", RabbitTemplate.class);
            transactions = context.getBean(TransactionTemplate.class);
        }

        @Override
        public void run() {
            for (int number = 0; !ending; number++) {
                String name = String.format("tx%04d", number);
                boolean back = number % 5 == 4;
                try {
                    transactions.executeWithoutResult(status -> {
                        for (int part = 0; part < PARTS; part++) {
                            transacted.convertAndSend(SHOP, "ledger", name + "/" + part);
                        }
                        if (back) {
                            status.setRollbackOnly();
                        }
                    });
                    (back ? rolledBack : committed).add(name);
                } catch (RuntimeException lost) {
                    Story.log("transaction " + name + ": " + lost);
                    // One that was to be rolled back may not come either way.
                    (back ? rolledBack : unknown).add(name);
                    pause(PAUSE_MS);
                }
                pause(5);
            }
        }

        void end() throws InterruptedException {
            ending = true;
            join();
        }

        void judge() throws InterruptedException {
            List<String> expected = new ArrayList<>();
            committed.forEach(name -> expected.addAll(parts(name)));
            Story.await("what was committed", () -> done.ledger.has(expected) && count(LEDGER) == 0);
            Set<String> came = done.ledger.keys();
            List<String> torn = unknown.stream()
                .filter(name -> { long some = parts(name).stream().filter(came::contains).count(); return some != 0 && some != PARTS; }).toList();
            Story.check("transactions", "those whose commit had no answer are whole or not there", torn.isEmpty(),
                unknown.size() + " without an answer, torn: " + torn);
            unknown.stream().filter(name -> came.contains(name + "/0")).forEach(name -> expected.addAll(parts(name)));
            // Rolled back ones are among those that come from nowhere.
            done.ledger.judge("transactions", expected, 0);
            Story.check("transactions", "there were commits and rollbacks", committed.size() > TRANSACTIONS_AFTER && rolledBack.size() > 2,
                committed.size() + " committed, " + rolledBack.size() + " rolled back");
        }

        private List<String> parts(String name) {
            List<String> parts = new ArrayList<>();
            for (int part = 0; part < PARTS; part++) {
                parts.add(name + "/" + part);
            }
            return parts;
        }
    }

    /** Asks all the time; a question amid a failover may have no answer, but none has a wrong one. */
    private final class Asker extends Thread {
        private final AtomicInteger answers = new AtomicInteger(), unanswered = new AtomicInteger();
        private final Set<String> wrong = ConcurrentHashMap.newKeySet();
        private volatile boolean ending;

        @Override
        public void run() {
            for (int number = 0; !ending; number++) {
                try {
                    Object answer = template.convertSendAndReceive("", QUESTIONS, "question" + number);
                    if (answer == null) {
                        unanswered.incrementAndGet();
                    } else if (answer.equals("answer to question" + number)) {
                        answers.incrementAndGet();
                    } else {
                        wrong.add(number + ": " + answer);
                    }
                } catch (AmqpException lost) {
                    unanswered.incrementAndGet();
                    Story.log("question " + number + ": " + lost);
                    pause(PAUSE_MS);
                }
                pause(10);
            }
        }

        void end() throws InterruptedException {
            ending = true;
            join();
        }
    }

    private static boolean poison(String key) {
        return key.matches("\\d+") && Integer.parseInt(key) % 20 == 3;
    }

    private static boolean again(Message message) {
        var properties = message.getMessageProperties();
        return Boolean.TRUE.equals(properties.getRedelivered()) || Boolean.TRUE.equals(properties.getHeaders().get(AGAIN));
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }
}
