//! The tensors of well-known models, made from the shapes of their layers, in the order of the layers.
//!
//! Six are those of Xue et al., "Fast Distributed Deep Learning over RDMA", table 2, with the tensors and the size
//! given there (its MB are of 2^20 bytes). The paper names no number of classes: with 10 all its CNNs have the size it
//! gives, which a test holds; with 1,000 they would have that of the literature. Nothing here measures.

/// Elements of one tensor.
type Elements = u64;

/// The tensors of a model, by their elements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Layers(Vec<Elements>);

impl Layers {
    /// A matrix and its bias.
    fn dense(&mut self, from: Elements, to: Elements) {
        self.0.extend([from * to, to]);
    }

    /// A convolution with a kernel of `taps` places, and its bias (or what normalises it, one number a channel).
    fn convolution(&mut self, taps: Elements, from: Elements, to: Elements) {
        self.0.extend([taps * from * to, to]);
    }

    /// Convolutions after one another, each with its taps and channels; the first one takes `from` channels.
    fn branch(&mut self, from: Elements, convolutions: &[(Elements, Elements)]) {
        let mut from = from;
        for (taps, to) in convolutions {
            self.convolution(*taps, from, *to);
            from = *to;
        }
    }

    fn bytes(&self) -> Vec<u64> {
        self.0.iter().map(|elements| elements * size_of::<f32>() as u64).collect()
    }
}

/// The classes that the paper's CNNs tell apart.
const CLASSES: Elements = 10;

/// AlexNet in one column (Krizhevsky, "One weird trick for parallelizing convolutional neural networks"), unpadded, as
/// TensorFlow's model library has it.
fn alexnet(classes: Elements) -> Layers {
    let mut layers = Layers::default();
    layers.branch(3, &[(11 * 11, 64), (5 * 5, 192), (9, 384), (9, 384), (9, 256)]);
    layers.dense(5 * 5 * 256, 4096);
    layers.dense(4096, 4096);
    layers.dense(4096, classes);
    layers
}

/// VGG-16 (Simonyan and Zisserman, "Very deep convolutional networks", table 1, column D).
fn vgg16(classes: Elements) -> Layers {
    let mut layers = Layers::default();
    let channels = [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512];
    layers.branch(3, &channels.map(|to| (9, to)));
    layers.dense(7 * 7 * 512, 4096);
    layers.dense(4096, 4096);
    layers.dense(4096, classes);
    layers
}

/// Inception-v3 (Szegedy et al., "Rethinking the Inception architecture", table 1) with its auxiliary classifier;
/// normalisation has a shift and no scale, as in TensorFlow's model library.
fn inception_v3(classes: Elements) -> Layers {
    let mut layers = Layers::default();
    layers.branch(3, &[(9, 32), (9, 32), (9, 64), (1, 80), (9, 192)]);
    for (from, pooled) in [(192, 32), (256, 64), (288, 64)] {
        layers.branch(from, &[(1, 64)]);
        layers.branch(from, &[(1, 48), (25, 64)]);
        layers.branch(from, &[(1, 64), (9, 96), (9, 96)]);
        layers.branch(from, &[(1, pooled)]);
    }
    layers.branch(288, &[(9, 384)]);
    layers.branch(288, &[(1, 64), (9, 96), (9, 96)]);
    for inner in [128, 160, 160, 192] {
        layers.branch(768, &[(1, 192)]);
        layers.branch(768, &[(1, inner), (7, inner), (7, 192)]);
        layers.branch(768, &[(1, inner), (7, inner), (7, inner), (7, inner), (7, 192)]);
        layers.branch(768, &[(1, 192)]);
    }
    layers.branch(768, &[(1, 128), (25, 768)]);
    layers.dense(768, classes);
    layers.branch(768, &[(1, 192), (9, 320)]);
    layers.branch(768, &[(1, 192), (7, 192), (7, 192), (9, 192)]);
    for from in [1280, 2048] {
        layers.branch(from, &[(1, 320)]);
        layers.branch(from, &[(1, 384), (3, 384)]);
        layers.convolution(3, 384, 384);
        layers.branch(from, &[(1, 448), (9, 384), (3, 384)]);
        layers.convolution(3, 384, 384);
        layers.branch(from, &[(1, 192)]);
    }
    layers.dense(2048, classes);
    layers
}

/// One recurrent layer of 1,024, with matrices of its own for each gate, and a layer of 1,000 behind it.
fn recurrent(gates: usize) -> Layers {
    let mut layers = Layers::default();
    for _ in 0..gates {
        layers.0.extend([1024 * 1024, 1024 * 1024, 1024]);
    }
    layers.dense(1024, 1000);
    layers
}

/// "3 hidden layers with dimension of 4096 and two layers of input and output" (the paper), of digits.
fn fcn5() -> Layers {
    let mut layers = Layers::default();
    for (from, to) in [(784, 4096), (4096, 4096), (4096, 4096), (4096, 4096), (4096, 10)] {
        layers.dense(from, to);
    }
    layers
}

/// Llama 3 with 8 billion parameters (Grattafiori et al., "The Llama 3 herd of models", table 3).
fn llama3_8b() -> Layers {
    let (vocabulary, width, inner, shared) = (128_256, 4096, 14_336, 1024);
    let mut layers = Layers(vec![vocabulary * width]);
    for _ in 0..32 {
        let attention = [width, width * width, width * shared, width * shared, width * width];
        layers.0.extend(attention.into_iter().chain([width, width * inner, width * inner, width * inner]));
    }
    layers.0.extend([width, vocabulary * width]);
    layers
}

/// Each tensor of the 32 GB of Llama-3-8B is divided by this: the shares of the tensors stay, and 0.5 GB fit.
pub(crate) const LLAMA_SCALE: Elements = 64;

fn llama3_8b_scaled() -> Layers {
    Layers(llama3_8b().0.into_iter().map(|elements| elements / LLAMA_SCALE).collect())
}

/// A model of the suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Model {
    /// The benchmark's name in the report.
    pub(crate) name: &'static str,
    /// Bytes of its tensors.
    pub(crate) tensors: Vec<u64>,
    /// Whether `--quick` keeps it.
    pub(crate) quick: bool,
}

/// The name of the model that is compared with one tensor of its size.
pub(crate) const INCEPTION: &str = "inception_v3";

/// The name of the model that no cache holds and that ratios to the best copy are told of.
pub(crate) const FLAT: &str = "model_256mb";

/// All models, the small ones first.
pub(crate) fn all() -> Vec<Model> {
    let of = |name, layers: Layers| Model { name, tensors: layers.bytes(), quick: name == "gru" };
    vec![
        of("gru", recurrent(3)),
        of("lstm", recurrent(4)),
        of(INCEPTION, inception_v3(CLASSES)),
        of("alexnet", alexnet(CLASSES)),
        of("fcn5", fcn5()),
        Model { name: FLAT, tensors: vec![16 << 20; 16], quick: false },
        of("llama3_8b_1_64", llama3_8b_scaled()),
        of("vgg16", vgg16(CLASSES)),
    ]
}

/// Is there a model of this name?
pub(crate) fn is_one(name: &str) -> bool {
    all().iter().any(|model| model.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Layers {
        fn elements(&self) -> Elements {
            self.0.iter().sum()
        }
    }

    #[test]
    fn the_papers_models_have_the_tensors_and_the_size_of_its_table() {
        let table = [
            ("alexnet", 16, 176.42),
            (INCEPTION, 196, 92.90),
            ("vgg16", 32, 512.32),
            ("lstm", 14, 35.93),
            ("gru", 11, 27.92),
            ("fcn5", 10, 204.47),
        ];
        for (name, tensors, mib) in table {
            let model = all().into_iter().find(|model| model.name == name).expect("it is there");
            let bytes: u64 = model.tensors.iter().sum();
            assert_eq!(model.tensors.len(), tensors, "{name}");
            assert!((bytes as f64 / f64::from(1 << 20) - mib).abs() < 0.005, "{name} has {bytes} bytes");
        }
    }

    /// The counts that the models' authors and their best-known implementations give.
    #[test]
    fn parameters_are_as_many_as_the_literature_says() {
        assert_eq!(vgg16(1000).elements(), 138_357_544);
        // Keras gives 23,817,352 that are trained, without the auxiliary classifier.
        let auxiliary = (768 * 128 + 128) + (25 * 128 * 768 + 768) + (768 * 1000 + 1000);
        assert_eq!(inception_v3(1000).elements(), 23_817_352 + auxiliary);
        assert_eq!(llama3_8b().elements(), 8_030_261_248);
        // PyTorch's has 61,100,840: its first dense layer takes 6 by 6 places, its fourth convolution gives 256 channels.
        let convolutions = |fourth: u64| 9 * (384 * fourth + fourth * 256) + fourth;
        let more = (36 - 25) * 256 * 4096 + convolutions(256);
        assert_eq!(alexnet(1000).elements() + more, 61_100_840 + convolutions(384));
    }

    #[test]
    fn every_model_can_be_declared() {
        for model in all() {
            let spec = crate::workload::WorkSpec::of_tensors(
                model.name,
                crate::workload::Op::PushPull,
                model.tensors.clone(),
            );
            spec.check().expect("within bounds");
            assert!(model.tensors.iter().sum::<u64>() < 600 << 20, "{} fits", model.name);
        }
        assert_eq!(llama3_8b_scaled().elements() * LLAMA_SCALE, llama3_8b().elements(), "no tensor is cut");
    }
}
