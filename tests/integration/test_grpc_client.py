"""grpcio with nothing but server reflection: what a client without our .proto files can do."""

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVICE = "flotilla.v1.Inference"


class Reflected:
    """Calls a service by name, its messages learned from the server, or from what `like` has learned."""

    def __init__(self, target, like=None):
        self.address = target
        self.channel = grpc.insecure_channel(target)
        if like is not None:
            self.services, self.pool, self.service = like.services, like.pool, like.service
            return
        database = ProtoReflectionDescriptorDatabase(self.channel)
        self.services = database.get_services()
        self.pool = descriptor_pool.DescriptorPool(database)
        self.service = self.pool.FindServiceByName(SERVICE)

    def message(self, name):
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(f"flotilla.v1.{name}"))

    def call(self, method, request, **options):
        descriptor = self.service.FindMethodByName(method)
        kind = self.channel.unary_stream if descriptor.server_streaming else self.channel.unary_unary
        response = message_factory.GetMessageClass(descriptor.output_type)
        stub = kind(
            f"/{SERVICE}/{method}",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=response.FromString,
        )
        return stub(request, timeout=60, **options)


@pytest.fixture(scope="module")
def client(pair):
    return Reflected(pair.grpc)


def request(client, text="The capital of France is", max_tokens=8, **sampling):
    message = client.message("GenerateRequest")(text=text)
    message.stopping.max_tokens = max_tokens
    message.sampling.temperature = sampling.pop("temperature", 0)
    for key, value in sampling.items():
        setattr(message.sampling, key, value)
    return message


def test_reflection_lists_the_services(client):
    assert {SERVICE, "grpc.health.v1.Health"} <= set(client.services)


def test_health(client):
    stub = health_pb2_grpc.HealthStub(client.channel)
    for service in ("", SERVICE):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_generate_streams(client):
    responses = list(client.call("Generate", request(client, max_tokens=32)))
    assert len(responses) > 3, "a message a step, not all at the end"
    text = "".join(c.text for r in responses for c in r.choices)
    assert "Paris" in text
    last = responses[-1]
    assert last.usage.prompt_tokens == 5 and last.usage.completion_tokens == 32
    assert any(c.finish_reason for c in last.choices)


def test_timing_has_every_stage(client):
    asked = request(client)
    asked.output.return_timing = True
    responses = list(client.call("Generate", asked))
    assert not any(r.HasField("timing") for r in responses[:-1])
    timing = responses[-1].timing
    engine = [timing.arrival_ns, timing.queued_ns, timing.first_scheduled_ns, timing.first_token_ns,
              timing.finished_ns]
    assert engine == sorted(engine) and engine[0] > 0
    assert timing.sent_ns - timing.received_ns >= timing.finished_ns - timing.arrival_ns
    assert timing.wait_reason == "next_step"


def test_tokenize_round_trip(client):
    text = "Ça alors! 東京 2024 🙂"
    ids = client.call("Tokenize", client.message("TokenizeRequest")(text=text)).token_ids
    back = client.call("Detokenize", client.message("DetokenizeRequest")(token_ids=ids)).text
    assert back == text


def test_token_ids_equal_text(client):
    ids = client.call("Tokenize", client.message("TokenizeRequest")(text="Hello there")).token_ids
    by_ids = request(client)
    by_ids.token_ids.ids.extend(ids)
    texts = ["".join(c.text for r in client.call("Generate", m) for c in r.choices)
             for m in (by_ids, request(client, text="Hello there"))]
    assert texts[0] == texts[1] and texts[0]


def test_models_and_abort(client):
    models = client.call("ListModels", client.message("ListModelsRequest")()).models
    assert len(models) == 1 and models[0].max_model_len == 8192
    assert client.call("Abort", client.message("AbortRequest")(request_id="nobody")).found is False


@pytest.mark.parametrize("field,value", [("temperature", 2.5), ("top_p", 1.5), ("min_p", -0.5)])
def test_out_of_range_names_the_field(client, field, value):
    with pytest.raises(grpc.RpcError) as error:
        list(client.call("Generate", request(client, **{field: value})))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert field in error.value.details()


def test_chat(client):
    chat = client.message("ChatRequest")()
    chat.base.CopyFrom(request(client))
    chat.base.ClearField("text")
    chat.messages.add(role="system", content="You are a helpful assistant.")
    chat.messages.add(role="user", content="What is the capital of France?")
    responses = list(client.call("Chat", chat))
    assert "Paris" in "".join(c.text for r in responses for c in r.choices)
    chat.messages[1].role = "robot"
    with pytest.raises(grpc.RpcError) as error:
        list(client.call("Chat", chat))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "messages[1].role" in error.value.details()


def test_embed(client):
    answer = client.call("Embed", client.message("EmbedRequest")(text="The capital of France is"))
    assert len(answer.embedding) == 576 and answer.usage.prompt_tokens == 5
    assert abs(sum(x * x for x in answer.embedding) - 1) < 1e-5
    with pytest.raises(grpc.RpcError) as error:
        client.call("Embed", client.message("EmbedRequest")())
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "token_ids" in error.value.details()
